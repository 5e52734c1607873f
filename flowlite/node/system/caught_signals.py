"""Which processes have a handler for a signal, as /proc says it: only those are sent it, the others would die of it."""

from __future__ import annotations

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal. False where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def listeners(ancestors: Iterable[int], number: int) -> list[int]:
    """All descendants of some processes that have a handler for a signal."""
    return sorted(pid for pid in processes.descendants(ancestors) if catches(pid, number))
