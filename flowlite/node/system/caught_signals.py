"""Finds the processes that handle a signal, from /proc: a signal is sent only to them, since it would kill others."""

from __future__ import annotations

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. False if the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def listeners(ancestors: Iterable[int], number: int) -> list[int]:
    """Returns all descendants of some processes that have a handler for a signal."""
    return sorted(pid for pid in processes.descendants(ancestors) if catches(pid, number))
