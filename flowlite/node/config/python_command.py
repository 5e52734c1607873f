"""Reads command lines that start Python: which interpreter, with which options, which script or module. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

STARTED_ANEW = "each rank is a Python of its own, and not forked from the fork server"
"""The beginning of the sentence that says why."""
_NAME = re.compile(r"python(\d+(\.\d+)?)?")
# Options that a process may have that was started before its script was known, and forked since.
_KEPT = frozenset("uOBbqsP")
_WITH_VALUE = frozenset("WX")
_KEPT_X = re.compile(
    r"(utf8(=.*)?|dev|faulthandler|no_debug_ranges|int_max_str_digits=.*|warn_default_encoding|pycache_prefix=.*)"
)
# Modules that run another program and look at its imports, or start further Pythons.
_RUNNING = """
    cProfile profile trace pdb timeit tracemalloc coverage kernprof line_profiler memory_profiler scalene viztracer
    mprof pyinstrument memray filprofiler yappi slipcover hunter pyperf ddtrace nvtx torch.utils.bottleneck
    debugpy ipdb pudb IPython pytest unittest venv pip ensurepip torch.distributed.run
    torch.distributed.launch torch.distributed.elastic accelerate.commands.launch deepspeed.launcher.runner
    horovod.runner.launch
"""
_RUNNERS = frozenset(_RUNNING.split())
# The variables of the options that are not among `_KEPT` and `_KEPT_X`, and others that look at the start or the end.
_LOOKING = """
    PYTHONVERBOSE PYTHONPROFILEIMPORTTIME PYTHONINSPECT PYTHONDEBUG PYTHONTRACEMALLOC PYTHONMALLOCSTATS PYTHONDUMPREFS
    PYTHONDUMPREFSFILE PYTHONPERFSUPPORT PYTHON_PERF_JIT_SUPPORT
"""


class NotForked(Exception):
    """A command runs as a Python of its own, and not from the fork server; the text says why."""


class NoPython(NotForked):
    """The command is not known to run Python."""


class PythonCommand(NamedTuple):
    """A command that runs a script or a module.

    Attributes:
        options: Its options, without `-m`.
        script: The path of the script; "" for a module.
        module: The module of `-m`; "" for a script.
        arguments: The arguments of the script or module.
    """

    options: tuple[str, ...]
    script: str
    module: str
    arguments: tuple[str, ...]


def is_python(program: str) -> bool:
    """Whether a program is called like a Python interpreter."""
    return _NAME.fullmatch(program.rpartition("/")[2]) is not None


def parse(argv: Sequence[str]) -> PythonCommand:
    """Reads a command line whose program is an interpreter.

    Raises:
        NotForked: It does something that a forked process cannot show; the text names it.
    """
    words = list(argv[1:])
    options: list[str] = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "-" or word.startswith("--"):
            raise NotForked(f"python {word} is started as a process of its own")
        for at, letter in enumerate(word[1:], start=1):
            rest = word[at + 1 :]
            if letter == "m" or letter in _WITH_VALUE:
                if not rest and not words:
                    raise NotForked(f"python {word} lacks a value")
                value = rest or words.pop(0)
                if letter == "m":
                    if at > 1:
                        options.append(word[:at])
                    refuse_runner(value)
                    return PythonCommand(tuple(options), "", value, tuple(words))
                if letter == "X" and not _KEPT_X.fullmatch(value):
                    raise NotForked(f"python -X {value} looks at the start of the interpreter")
                options += [word] if rest else [word, value]
                break
            if letter not in _KEPT:
                raise NotForked(f"python -{letter} changes how the interpreter starts")
        else:
            options.append(word)
    if not words:
        raise NotForked("python without a script reads its standard input")
    return PythonCommand(tuple(options), words[0], "", tuple(words[1:]))


def refuse_runner(module: str) -> None:
    """Refuses a module that runs other programs.

    Raises:
        NotForked: It is one.
    """
    if module in _RUNNERS or module.partition(".")[0] in _RUNNERS:
        raise NotForked(f"{module} looks at the imports of what it runs, or starts further Pythons")


def refuse_variables(environment: Mapping[str, str]) -> None:
    """Refuses an environment in which Python does something that a forked process cannot show.

    Raises:
        NotForked: It has such a variable.
    """
    for name in _LOOKING.split():
        if environment.get(name):
            raise NotForked(f"{name} looks at the start or the end of the interpreter")


def interpreter_of(first_line: bytes) -> str:
    """Returns the interpreter that the first line of a script names: a path, or a name that is looked up on the PATH.

    Raises:
        NoPython: It names no Python.
        NotForked: It gives options to Python.
    """
    words = first_line.decode("utf-8", "replace").removeprefix("#!").split()
    if not first_line.startswith(b"#!") or not words:
        raise NoPython("it is no script")
    if words[0].endswith("/env") and len(words) == 2:
        words = words[1:]
    if not is_python(words[0]):
        raise NoPython(f"it is a script of {words[0]}")
    if len(words) != 1:
        raise NotForked(f"it is run by {' '.join(words)}")
    return words[0]
