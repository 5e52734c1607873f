"""Finds the processes that handle a signal, from /proc: a signal is sent only to them, since it would kill others."""

from __future__ import annotations

import signal

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# Java's virtual machine and the runtime of Go handle all of these in every process, and SIGUSR2 with them. A program
# that handles SIGUSR2 itself has no reason to: Python, for one, leaves SIGPIPE and SIGXFSZ ignored.
_OF_RUNTIMES = (signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGPIPE, signal.SIGXFSZ)


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
    """Returns all descendants of some processes that have a handler for a signal."""
    return sorted(pid for pid in processes.descendants(ancestors) if catches(pid, number))
