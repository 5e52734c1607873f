"""Looks for launchers such as torchrun in the shell script that a command runs.

A script is read as a command line for a shell is (`spec/launchers.py`): only what runs in any case counts.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.bundle.accelerate_config import config_problem
from flowlite.errors import SpecError
from flowlite.node.config.command_wrappers import wrapped
from flowlite.spec.launchers import SHELLS, launcher_in, launcher_problem

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

_LARGEST = 4 << 20
_CHANGES_DIRECTORY = re.compile(r"\b(cd|pushd)\b")


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
        problem = config_problem(launcher_in(text), directory, config.most_nodes)
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
