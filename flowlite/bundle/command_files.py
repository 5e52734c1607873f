"""Looks for launchers such as torchrun in the files that a command names, and for commands that are no program.

A shell script is read as a command line for a shell is (`spec/launchers.py`): only what runs in any case counts.

A configuration of Accelerate is written for one machine, by `accelerate config` with the rank 0. The same file on all
nodes makes each of them the first, or the only one. In manual mode a configuration of one machine is right all the same
if it makes Accelerate start torchrun, which reads the other nodes from the environment.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.bundle.script import find_program
from flowlite.errors import SpecError
from flowlite.node.config.command_wrappers import wrapped
from flowlite.spec.launchers import SHELLS, Launcher, launcher_in, launcher_problem, options_in

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

_LARGEST = 4 << 20
_GANG = (
    "--num_machines $FLOW_NUM_NODES --machine_rank $FLOW_NODE_RANK --main_process_ip $FLOW_MAIN_IP "
    "--main_process_port $MASTER_PORT"
)
_WRITTEN = "--config_file $FLOW_ACCELERATE_CONFIG"
# With one of these options, the kind of training that the file names does not count.
_KINDS = ("multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "mpirun_hostfile")
_CHANGES_DIRECTORY = re.compile(r"\b(cd|pushd)\b")


def refuse_what_is_no_program(config: TaskConfig) -> None:
    """Refuses a command that certainly cannot be started, on this machine or on nodes.

    That is a line for a shell in a list of words, and a script of the current directory without its interpreter: no
    program is looked for there.

    Raises:
        SpecError: It is one. The text says what to write.
    """
    if config.command is None or isinstance(config.command, str) or config.batch is not None:
        return
    program = config.command[0]
    first = program.split()[:1]
    if "/" in "".join(first) or find_program(program) is not None:
        return
    if first != [program]:
        raise SpecError(
            f"command: a list is one program with its arguments, and no program has the name {program!r}; write one "
            "text, which a shell runs, or each word as an item of its own"
        )
    interpreter = {".py": "python", ".sh": "sh"}.get(os.path.splitext(program)[1])
    # An image, `setup` or another PATH may have a program of that name.
    is_theirs = config.image is not None or config.setup or "PATH" in config.environment
    if interpreter and not is_theirs and os.path.isfile(program):
        raise SpecError(
            f"command: {program} is a file here, and no program on the PATH; write {interpreter} {program}"
        )


def refuse_launchers(config: TaskConfig, directory: Path | None) -> None:
    """Refuses what certainly starts a launcher in a way that would train several separate models, as its files show.

    That is a shell script which starts one, and a configuration of Accelerate.

    Args:
        config: The task.
        directory: As for `script_call`.

    Raises:
        SpecError: It does. The text says what to add.
    """
    command = config.command
    if directory is None or not command or config.batch is not None:
        return
    if isinstance(config.gpu, tuple):
        # How many there are on a node is not known yet.
        return
    name, text = "command", command
    if not isinstance(command, str):
        script, content = _shell_script(wrapped(command), directory)
        if content:
            name, text = script, content
            problem = launcher_problem(
                content,
                config.distributed_mode,
                config.total_processes,
                config.workers_per_node,
                config.gpus_per_node,
            )
            if problem:
                raise SpecError(problem.replace("command:", f"{name}:", 1))
    once = config.distributed_mode in ("auto", "manual") and config.workers_per_node == 1
    # After `cd`, the names of files lead elsewhere.
    moves = any(map(_CHANGES_DIRECTORY.search, [text] if isinstance(text, str) else text))
    if once and not moves:
        problem = _config_problem(launcher_in(text), directory, config.most_nodes)
        if problem:
            raise SpecError(f"{name}: accelerate launch: {problem}")


def _shell_script(command: Sequence[str], directory: Path) -> tuple[str, str]:
    """The name of the shell script that a command runs, and what is in it; of another command, nothing."""
    shell = bool(command) and _is_shell(command[0])
    words = command[1:] if shell else command
    options = list(itertools.takewhile(lambda word: word[:1] in "-+", words))
    name = next(iter(words[len(options) :]), "")
    # What follows `-c` is no file.
    if not name or (shell and any(word[0] == "-" and "c" in word for word in options if word)):
        return "", ""
    try:
        # Reading a pipe would take from the script what is meant for it.
        text = (directory / name).read_text() if _is_small_file(directory / name) else ""
    except (OSError, ValueError):
        return "", ""
    interpreter = text.partition("\n")[0].removeprefix("#!").split()
    if shell or (text.startswith("#!") and any(map(_is_shell, interpreter))):
        return name, text
    return "", ""


def _is_shell(program: str) -> bool:
    return os.path.basename(program) in SHELLS


def _is_small_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _LARGEST


def _config_problem(launcher: Launcher | None, directory: Path, nodes: int) -> str:
    """What is wrong with the configuration on several nodes, and what to write; "" if nothing is known to be.

    Args:
        launcher: That is started once on each node.
        directory: In which it is started.
        nodes: Of the gang.
    """
    if launcher is None or launcher.program != "accelerate launch" or nodes == 1:
        return ""
    given = options_in(launcher.arguments)
    name = given.get("config_file", "")
    values = _read(directory / name) if name and not name.startswith("/") else {}
    if not values:
        return ""
    machines = _number(given.get("num_machines", values.get("num_machines", 1)))
    if machines > 1 and not given.keys() & {"machine_rank"}:
        return (
            f"{name} gives all {nodes} nodes the same machine_rank, {values.get('machine_rank', 0)}: they would wait "
            f"for the others in vain; add {_GANG}, or write {_WRITTEN}"
        )
    # YAML takes NO for a truth value.
    alone = str(values.get("distributed_type")).upper() in ("NO", "FALSE")
    if alone and not given.keys() & set(_KINDS):
        return (
            f"{name} has distributed_type NO, with which Accelerate starts one process that knows of no other: each of "
            f"{nodes} nodes would train a separate model; write {_WRITTEN}"
        )
    return ""


def _read(file: Path) -> Mapping[str, Any]:
    """The values of a configuration; nothing if it cannot be read."""
    import yaml

    try:
        # JSON is read as YAML, too.
        values = yaml.safe_load(file.read_bytes()) if _is_small_file(file) else {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        # A variable, which is not known here.
        return 1
