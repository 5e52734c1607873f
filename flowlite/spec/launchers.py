"""Refuses commands that start a launcher such as torchrun in a way that would train several separate models.

A launcher starts the processes of a node itself. If it is started as a worker, once for each rank, each launcher forms
a separate world: the gang trains that many models and exits with 0. So does one that is started once per node and not
told of the other nodes, unless it reads torchrun's variables (`worker/environment.py`). A command is refused only if it
certainly starts such a launcher; a script or variable that is read at run time is not looked into.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flowlite.node.config.command_wrappers import ASSIGNMENT, wrapped
from flowlite.node.config.launcher_programs import MPI
from flowlite.node.quick_dataclass import dataclass

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
    "composer.cli.launcher": "composer",
}

# Options that tell a launcher which runs once per node about the other nodes.
_TOLD: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("nnodes", "rdzv_endpoint", "master_addr"),
    "accelerate launch": ("num_machines", "machine_rank", "config_file"),
    "deepspeed": ("no_ssh", "node_rank"),
    "fabric run": ("num_nodes",),
    "composer": ("world_size",),
    "colossalai run": (),
    "horovodrun": (),
    "mpirun": (),
}

# Options that tell it that there are no others; None for any value.
_ALONE: Mapping[str, Mapping[str, tuple[str, ...] | None]] = {
    "torchrun": {"nnodes": ("1", "1:1"), "standalone": None},
    "accelerate launch": {"num_machines": ("1",)},
}

# Options with which a launcher that runs once per node forms the gang, besides those in `_TOLD`.
_FORMS: Mapping[str, tuple[str, ...]] = {
    # It has torchrun inside then, which reads the variables of manual mode; or mpirun.
    "accelerate launch": ("multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "mpirun_hostfile"),
    "deepspeed": ("hostfile", "H"),
}  # fmt: skip

# What tells a launcher that runs once per node of the others.
_TELLING: Mapping[str, str] = {
    "accelerate launch": "--config_file $FLOW_ACCELERATE_CONFIG",
    "deepspeed": "--no_ssh --hostfile $FLOW_HOSTFILE --node_rank $FLOW_NODE_RANK --master_addr $MASTER_ADDR "
    "--master_port $MASTER_PORT",
    "fabric run": "--num-nodes $FLOW_NUM_NODES --node-rank $FLOW_NODE_RANK --main-address $FLOW_MAIN_IP "
    "--main-port $MASTER_PORT",
    # It reads the rank of the node and the address of node 0 from the environment.
    "composer": "-n $PET_NPROC_PER_NODE --world_size $((FLOW_NUM_NODES * PET_NPROC_PER_NODE))",
}

# How trainers' own programs that start one of these pass that on, by program.
_PASSED_ON: Mapping[str, str] = {
    "axolotl": f"… -- {_TELLING['accelerate launch']}",
    "trl": "… --accelerate_config $FLOW_ACCELERATE_CONFIG",
}

# The launchers that form no gang when they run once per node, and what to start in their place.
_INSTEAD: Mapping[str, str] = {
    # It logs in to the nodes that it is told of. What it starts is torchrun.
    "colossalai run": "torchrun",
}

# Trainers' own programs that start a launcher, by program and first argument.
_TRAINERS = frozenset(
    {("accelerate", "launch"), ("axolotl", "train"), ("colossalai", "run"), ("fabric", "run"),
     ("llamafactory-cli", "train"), ("tune", "run"), ("trl", "distillation"), ("trl", "dpo"), ("trl", "grpo"),
     ("trl", "kto"), ("trl", "reward"), ("trl", "rloo"), ("trl", "sft")}
)  # fmt: skip

# Programs that run a command in an environment, with those of their options that take a value.
_ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "uv": (
        *("--with", "--with-editable", "--with-requirements", "--python", "-p", "--extra", "--no-extra", "--group"),
        *("--no-group", "--only-group", "--package", "--env-file", "--project", "--directory", "--index"),
        *("--index-url", "--extra-index-url", "--find-links", "-f", "--refresh-package", "--upgrade-package", "-P"),
        "--config-file",
    ),
    "poetry": ("-C", "--directory", "-P", "--project"),
    "conda": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "mamba": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "micromamba": ("-n", "--name", "-p", "--prefix", "--cwd", "-a", "--attach", "-e", "--env", "-r", "--root-prefix"),
    "pixi": ("-e", "--environment", "--manifest-path"),
    "pdm": ("-p", "--project", "-s", "--site-packages"),
    "pipenv": (),
}  # fmt: skip

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_VALUES = frozenset({"-X", "-W", "--check-hash-based-pycs"})
# Shell words after which the commands that run depend on conditions.
_UNCERTAIN = frozenset(
    {"if", "for", "while", "until", "case", "select", "function", "{", "!", "[[", "exit", "return", "coproc", "trap"}
)  # fmt: skip
# Commands that are used in front of `&& torchrun …` for preparation; any other command may be a condition.
_PREPARES = frozenset(
    {"cd", "pushd", ".", "source", "export", "unset", "set", "ulimit", "echo", "mkdir", "cp", "git", "pip", "pip3",
     "uv", "conda", "mamba", "module", "ml", "apt", "apt-get", "python", "python3", "sleep", "date", "hostname"}
)  # fmt: skip
_SEPARATORS = frozenset({";", "&", "|", "|&", "\n", "&&", "||"})
_REDIRECTIONS = frozenset({">", ">>", "<", ">&", "&>", "&>>", "<&", ">|"})
_PART = re.compile(
    r"""(?P<blank>[ \t\r]+|\\\n)
    |(?P<comment>\#[^\n]*)
    |(?P<escaped>\\.)
    |(?P<single>'[^']*')
    |(?P<double>"(?:\\.|[^"\\])*")
    |(?P<operator>&&|\|\||\|&|&>>|&>|;;|<<<|<<|>>|>&|<&|>\||[;&|()<>\n])
    |(?P<plain>[^\s;&|()<>'"\\\#]+)""",
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher that a command starts.

    Attributes:
        name: Its usual name: "torchrun", "accelerate launch". That of a trainer which starts one: "axolotl train".
        arguments: The words after it; of a trainer those for the launcher.
        inside: The launcher that a trainer starts; "" for a launcher itself.
    """

    name: str
    arguments: tuple[str, ...]
    inside: str = ""

    @property
    def once_for_all_nodes(self) -> bool:
        """Whether it starts the workers of all nodes, as in the mode "mpi", and not those of one."""
        return self.name in ("horovodrun", "mpirun")

    @property
    def option(self) -> tuple[str, ...]:
        """The option of `flow run` with which it is started as often as it should be."""
        return ("--mode", "mpi") if self.once_for_all_nodes else ("--manual",)

    @property
    def program(self) -> str:
        """The launcher itself."""
        return self.inside or self.name

    @property
    def knows_other_nodes(self) -> bool:
        """Whether it knows the other nodes, so that the launchers of all nodes form one world."""
        given = options_in(self.arguments)
        if self.name == "composer" and not given.keys() & {"n", "nproc"}:
            # It reads all of it from the variables of a rank.
            return True
        for name, values in _ALONE.get(self.program, {}).items():
            if name in given and (values is None or given[name] in values):
                return False
        return bool(given.keys() & set(_TOLD[self.program]))

    def alone_on_each_node(self, nodes: int, gpus: int, *, in_shell: bool) -> str:
        """What is wrong, and what to write, if it is started once per node and not told of the others; else "".

        Args:
            nodes: Of the gang.
            gpus: That were asked for on each node.
            in_shell: Whether a shell starts it, which knows the variables.
        """
        given = options_in(self.arguments)
        if self.name == "torchrun" and "standalone" in given and "nnodes" not in given:
            return (
                f"torchrun --standalone makes a rendezvous on each of {nodes} nodes, to which the other nodes never "
                "come; leave out --standalone"
            )
        if self.program in _INSTEAD:
            return (
                f"{self.name} is not told of the other nodes: each of {nodes} would train a separate model; write "
                f"{_INSTEAD[self.program]} in its place"
            )
        if self.program not in _TELLING:
            return ""
        if given.keys() & {*_TOLD[self.program], *_FORMS.get(self.program, ())}:
            # Also one that was told in so many words that there are no others.
            return ""
        why, besides = "", ""
        if self.program == "accelerate launch" and "cpu" not in given:
            if gpus > 1:
                # It starts torchrun then.
                return ""
            why, besides = ", with at most one GPU on each", ", or --multi_gpu if there are several"
        told = _PASSED_ON[self.name.split()[0]] if self.inside else f"{_TELLING[self.program]} …"
        write = f"{self.name} {told}"
        write = write if in_shell else f"sh -c '{write}'"
        return (
            f"{self.name} is not told of the other nodes: each of {nodes} would train a separate model{why}; write "
            f"{write}{besides}"
        )


def launcher_problem(
    command: Sequence[str] | str | None, mode: str, processes: int, per_node: int, gpus: int = 0
) -> str:
    """Why a command must not run like this, with what to add; "" if there is no problem.

    Args:
        command: As in `TaskConfig`.
        mode: `distributed_mode`.
        processes: How often the command is started on all nodes together.
        per_node: How often it is started on each node.
        gpus: How many GPUs were asked for on each node.
    """
    if command is None or mode not in ("auto", "manual") or processes == 1:
        return ""
    found = launcher_in(command)
    if found is None:
        return ""
    if mode == "manual":
        alone = found.alone_on_each_node(processes, gpus, in_shell=isinstance(command, str))
        return f"command: {alone}" if alone else ""
    if per_node == 1 and found.knows_other_nodes:
        return ""
    if found.name == "llamafactory-cli train" and gpus <= 1:
        # It starts no torchrun then, and is a rank itself.
        return ""
    if found.once_for_all_nodes:
        add = "add --mode mpi (distributed_mode='mpi'), which starts it once for all nodes"
    else:
        add = "add --manual (distributed_mode='manual'), which starts it once per node"
    if found.program in _INSTEAD:
        add = f"write {_INSTEAD[found.program]} in its place, and {add}"
    return (
        f"command: {found.name} starts the workers itself; {processes} of them would train {processes} separate "
        f"models; {add}"
    )


def options_in(arguments: Sequence[str]) -> dict[str, str]:
    """The options among these words, without the dashes in front, and the values that they may have."""
    given: dict[str, str] = {}
    for at, word in enumerate(arguments, start=1):
        if word.startswith("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            following = "".join(arguments[at : at + 1])
            # The options of the script come after those of the launcher.
            given.setdefault(name.replace("-", "_"), value if has_value else following)
    return given


def launcher_in(command: Sequence[str] | str) -> Launcher | None:
    """The launcher that a command certainly starts; None if there is none."""
    return _in_line(command, 0) if isinstance(command, str) else _in_words(command, 0)


def _in_words(words: Sequence[str], depth: int) -> Launcher | None:
    rest = wrapped(words)
    while rest and os.path.basename(rest[0]) in _ENVIRONMENTS:
        rest = wrapped(_in_environment(os.path.basename(rest[0]), rest[1:]))
    if not rest:
        return None
    name, arguments = os.path.basename(rest[0]), rest[1:]
    if name in SHELLS:
        line = _line_of_shell(arguments)
        return None if line is None or depth >= _DEEPEST else _in_line(line, depth + 1)
    if _PYTHON.fullmatch(name):
        name, arguments = _module_of_python(arguments)
    elif arguments and (name, arguments[0]) in _TRAINERS:
        return _of_trainer(f"{name} {arguments[0]}", arguments[1:])
    elif name == "accelerate-launch":
        name = "accelerate launch"
    elif name in MPI:
        name = "mpirun"
    if name == "composer":
        arguments = _until_script(arguments)
    if name not in _TOLD or {"-h", "--help", "--version"} & set(arguments):
        return None
    # The package manager of PHP is called composer, too.
    return Launcher(name, tuple(arguments)) if arguments or name != "composer" else None


def _until_script(arguments: Sequence[str]) -> list[str]:
    """The arguments of Composer's launcher, up to what it starts: a script, a module or a command; else nothing."""
    modes = {"-m", "--module_mode", "-c", "--command_mode"}
    for at, word in enumerate(arguments, start=1):
        if word.endswith(".py") or word in modes:
            return list(arguments[:at])
    return []


def _of_trainer(name: str, arguments: Sequence[str]) -> Launcher | None:
    """The launcher that a trainer's own program starts with these arguments; None if it starts none."""
    if {"-h", "--help"} & set(arguments):
        return None
    if name in _TOLD:
        return Launcher(name, tuple(arguments))
    if name == "tune run":
        # torchtune starts torchrun if it is given an option of torchrun, before the recipe.
        told = bool(arguments) and arguments[0].startswith("-")
        return Launcher(name, tuple(arguments), "torchrun") if told else None
    if name == "llamafactory-cli train":
        return Launcher(name, (), "torchrun")
    if name.startswith("trl "):
        # Options of `accelerate launch` stand among its own. One of them has another name.
        words = (word.replace("--accelerate_config", "--config_file", 1) for word in arguments)
        return Launcher(name, tuple(words), "accelerate launch")
    # Axolotl: what its launcher is given comes after `--`.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = options_in(arguments[:end]).get("launcher", "accelerate")
    inside = {"accelerate": "accelerate launch", "torchrun": "torchrun"}.get(chosen, "")
    return Launcher(name, tuple(arguments[end + 1 :]), inside) if inside else None


def _in_environment(program: str, arguments: Sequence[str]) -> list[str]:
    """The command that `uv run` or the like runs; empty if there is none."""
    left = list(arguments)
    if not left or left.pop(0) != "run":
        return []
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option == "--":
            break
        if program == "uv" and option in ("-m", "--module"):
            return ["python", "-m", *left]
        if option in _ENVIRONMENTS[program]:
            del left[:1]
    return left


def _module_of_python(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The launcher that `python -m` runs, under its usual name, and its arguments."""
    left = list(arguments)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option in _PYTHON_VALUES:
            del left[:1]
        elif option.startswith("-m") or (option[1:-1].isalpha() and option.endswith("m")):
            module = option[2:] if option.startswith("-m") and len(option) > 2 else ""
            if not module and left:
                module = left.pop(0)
            return _MODULES.get(module, ""), left
        elif option.startswith(("-c", "--")):
            break
    return "", []


def _line_of_shell(arguments: Sequence[str]) -> str | None:
    """The argument of `bash -c`; None for a script, which is not looked into."""
    left = list(arguments)
    while left and left[0].startswith(("-", "+")):
        option = left.pop(0)
        if option in ("-o", "-O", "+o", "+O", "--rcfile", "--init-file"):
            del left[:1]
        elif not option.startswith("--") and "c" in option:
            return left[0] if left else None
    return None


def _in_line(line: str, depth: int) -> Launcher | None:
    """The first launcher among the simple commands of a shell line that certainly run."""
    for words in _simple_commands(line):
        found = _in_words(words, depth)
        if found is not None:
            return found
    return None


def _simple_commands(line: str) -> list[list[str]]:
    """The commands of a line that run in any case, up to the first word that makes this uncertain.

    Commands after `||` are left out, and so are those after `&&` that follow a possible condition:
    `[ $RANK = 0 ] && torchrun …` runs once.
    """
    try:
        tokens = list(_tokens(line))
    except ValueError:
        return []
    found: list[list[str]] = []
    words: list[str] = []
    sure = True
    for token in [*tokens, _Token(";", operator=True)]:
        if not token.operator:
            if not words and token.text in _UNCERTAIN:
                break
            words.append(token.text)
            continue
        if token.text in _REDIRECTIONS:
            continue
        if token.text not in _SEPARATORS:
            break
        while words and ASSIGNMENT.fullmatch(words[0]):
            del words[0]
        if words and sure:
            found.append(words)
        if words[:1] == ["exec"] and words[1:]:
            break
        if token.text == "&&":
            sure = sure and (not words or words[0] in _PREPARES)
        elif token.text != "\n" or words:
            sure = token.text != "||"
        words = []
    return found


class _Token(NamedTuple):
    """A word without its quotes, or an operator of the shell."""

    text: str
    operator: bool = False


def _tokens(line: str) -> Iterator[_Token]:
    """The words and operators of a shell line. Raises ValueError if it cannot be read, such as for an open quote."""
    at, word = 0, None
    while at < len(line):
        match = _PART.match(line, at)
        if match is None:
            raise ValueError(line[at:])
        at, kind, text = match.end(), match.lastgroup, match[0]
        if kind == "comment" and word is not None:
            # Inside a word, `#` does not begin a comment.
            at, kind, text = match.start() + 1, "plain", "#"
        if kind in ("plain", "escaped", "single", "double"):
            word = (word or "") + _unquoted(kind, text)
            continue
        if word is not None:
            yield _Token(word)
            word = None
        if kind == "operator":
            yield _Token(text, operator=True)
    if word is not None:
        yield _Token(word)


def _unquoted(kind: str, text: str) -> str:
    if kind == "escaped":
        return text[1:]
    if kind == "single":
        return text[1:-1]
    return re.sub(r'\\([$`"\\])', r"\1", text[1:-1]) if kind == "double" else text
