"""Rewrites the environment and command line that /proc shows of this process.

All processes of a task are found by `FLOW_TASK_ID` in the environment in /proc. A reaper that is forked from a fork
server for many tasks has inherited that process's environment, so it first writes its own task there. The kernel reads
these bytes from the memory of the process, so this needs no privilege.
"""

from __future__ import annotations

import os

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PADDING = "FLOW_WARM_PADDING"
"""A variable that only reserves space; `room` returns its value."""
_ROOM = 512
_ARGUMENTS_BEGIN, _ARGUMENTS_END, _ENVIRONMENT_BEGINS, _ENVIRONMENT_ENDS = 45, 46, 47, 48


def room() -> str:
    """Returns the value of `PADDING` for a process whose children will be marked."""
    return "." * _ROOM


def mark(variables: Mapping[str, str], command: Sequence[str] = ()) -> bool:
    """Makes /proc show these variables, and no others, as the environment that this process was started with.

    `os.environ` is not changed. Returns False, and changes nothing, if this is impossible.

    Args:
        command: The command line to show, if there is room for it.
    """
    if not processes.LINUX:
        return False
    import ctypes

    block = b"".join(f"{name}={value}".encode() + b"\0" for name, value in variables.items())
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    begin, end = int(fields[_ENVIRONMENT_BEGINS]), int(fields[_ENVIRONMENT_ENDS])
    if not begin or end - begin < len(block):
        return False
    # getenv() in the C library must not read from the memory that is overwritten below.
    for name, value in os.environ.items():
        os.putenv(name, value)
    ctypes.memmove(begin, block.ljust(end - begin, b"\0"), end - begin)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    if words and begin and len(words) <= end - begin:
        ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)
    return True
