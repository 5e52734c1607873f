"""Whose a process is, as others see it in /proc: the environment that it was started with, rewritten in place.

Everything of a task is found by `FLOW_TASK_ID` in that environment. A reaper that was forked from a warm process that
serves many tasks has inherited the environment of that process; it writes its own task there before it starts anything.
The kernel shows these bytes as they lie in the memory of the process, so that no privilege is needed.
"""

from __future__ import annotations

import os

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PADDING = "FLOW_WARM_PADDING"
"""A variable that only makes room; `room` gives its value."""
_ROOM = 512
_ARGUMENTS_BEGIN, _ARGUMENTS_END, _ENVIRONMENT_BEGINS, _ENVIRONMENT_ENDS = 45, 46, 47, 48


def room() -> str:
    """The value of `PADDING` in the environment of a process whose children will be marked."""
    return "." * _ROOM


def mark(variables: Mapping[str, str], command: Sequence[str] = ()) -> bool:
    """Make /proc show these variables, and no others, as the environment this process was started with.

    `os.environ` stays as it is. False where this cannot be done; nothing has changed then.

    Args:
        command: What it is to show as the command line, if there is room for it.
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
    # Who asks the C library for a variable must not read what is written there now.
    for name, value in os.environ.items():
        os.putenv(name, value)
    ctypes.memmove(begin, block.ljust(end - begin, b"\0"), end - begin)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    if words and begin and len(words) <= end - begin:
        ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)
    return True
