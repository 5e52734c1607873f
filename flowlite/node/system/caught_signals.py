"""Finds the processes that handle a signal, from /proc: a signal is sent only to them, since it would kill others."""

from __future__ import annotations

import os
import re
import signal

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# Java's virtual machine and the runtime of Go handle all of these in every process, and SIGUSR2 with them. A program
# that handles SIGUSR2 itself has no reason to: Python, for one, leaves SIGPIPE and SIGXFSZ ignored.
_OF_RUNTIMES = (signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGPIPE, signal.SIGXFSZ)


_SCRIPT_OF_BASH = 255
_LARGEST_SCRIPT = 4 << 20


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. False if the kernel does not tell."""
    return _is_in(number, _caught(pid))


def asks_for(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal that the program has set, rather than its language's runtime.

    Of a program for a runtime that handles nearly all signals itself, that cannot be known. It counts as not asking.
    """
    caught = _caught(pid)
    of_runtime = all(_is_in(each, caught) for each in _OF_RUNTIMES)
    return _is_in(number, caught) and not of_runtime


def listens(pid: int, number: int) -> bool:
    """Whether a process does something of its own with a signal.

    Two kinds of process have a handler and do not: `srun`, which passes the signal on to tasks without one, and a
    shell with a trap for its exit, which handles all signals that end it, and ends.
    """
    caught = _caught(pid)
    if not _is_in(number, caught) or _is_srun(pid):
        return False
    may_be_for_the_exit = all(_is_in(each, caught) for each in _OF_RUNTIMES)
    return not (may_be_for_the_exit and _is_bash(pid)) or _is_in_the_script(pid, number)


def _is_srun(pid: int) -> bool:
    """Whether a process is an `srun`: Slurm's own, or ours, which a Python runs."""
    words = _words(pid)
    is_ours = b"-I" in words[1:3] and b"srun" in words[3:6]
    return is_ours or os.path.basename(words[0] if words else b"") == b"srun"


def _is_bash(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("bash")
    except OSError:
        return False


def _is_in_the_script(pid: int, number: int) -> bool:
    """Whether what a bash runs names a signal. Of its traps, the kernel does not tell."""
    text = b"\n".join(_words(pid))
    try:
        # Where bash keeps the file of its script.
        with open(f"/proc/{pid}/fd/{_SCRIPT_OF_BASH}", "rb") as file:
            text += file.read(_LARGEST_SCRIPT)
    except OSError:
        pass
    name = signal.Signals(number).name.removeprefix("SIG").encode()
    return re.search(rb"(?i)%s|\btrap\b.*\b%d\b" % (name, number), text) is not None


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _caught(pid: int) -> int:
    """The signals that a process handles, as the kernel has them: a bit for each."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return 0
    return int(caught.split()[1], 16)


def _is_in(number: int, caught: int) -> bool:
    return bool(caught >> (number - 1) & 1)


def listeners(ancestors: Iterable[int], number: int) -> list[int]:
    """Returns all descendants of some processes that do something of their own with a signal."""
    return sorted(pid for pid in processes.descendants(ancestors) if listens(pid, number))
