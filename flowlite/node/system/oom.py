"""Tells from the kernel's counters whether it killed a process for lack of memory."""

from __future__ import annotations

import os
import re

from .atomic_files import text_of
from .byte_sizes import human_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
# In cgroup v1, a limit of the largest number of whole pages means no limit.
_NO_LIMIT = 1 << 60


class OomWatch:
    """Compares the kernel's counters for one process with their values at the start of the watch.

    Args:
        pid: The process. Its children belong to the same control group, unless they move to another.
        root: The directory that contains `proc` and the mounted control groups.
    """

    def __init__(self, pid: int, root: str = "/") -> None:
        self._root = root
        self._groups = list(self._groups_of(pid))
        self._before = self._counts()

    def why(self) -> str:
        """Returns what the counters say about a kill since the start, for parentheses; "" if there are no counters."""
        before, now = self._before, self._counts()
        if before is None or now is None:
            return ""
        if now[0] > before[0]:
            return f"out of memory: the kernel ended it, {self._room()}"
        if now[1] > before[1]:
            return "out of memory? the kernel has ended a process of this machine for it meanwhile"
        return "not by the kernel for lack of memory"

    def starved(self) -> bool:
        """Whether the kernel has killed a process of the control group since the start."""
        now = self._counts()
        return now is not None and self._before is not None and now[0] > self._before[0]

    def _counts(self) -> tuple[int, int] | None:
        """Returns the kills in the control group and on the machine; the latter include the former."""
        found = _KILLS.search(self._read("proc/vmstat"))
        if found is None:
            return None
        return self._own(), int(found[1])

    def _own(self) -> int:
        for group in self._groups[:1]:
            for name in ("memory.events.local", "memory.events", "memory.oom_control"):
                if kills := _KILLS.search(self._read(f"{group}/{name}")):
                    return int(kills[1])
        return 0

    def _room(self) -> str:
        """Returns the memory limit or size, as text."""
        limits = []
        for group in self._groups:
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = self._read(f"{group}/{name}").strip()
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    limits.append(int(text))
        total = re.search(r"^MemTotal:\s+(\d+) kB", self._read("proc/meminfo"), re.MULTILINE)
        machine = int(total[1]) * 1024 if total is not None else 0
        if limits and (not machine or min(limits) < machine):
            return f"whose control group may have {human_size(min(limits))}"
        return f"the machine has {human_size(machine)}" if machine else "no memory was left"

    def _groups_of(self, pid: int) -> Iterator[str]:
        """Yields the directories of the process's memory control group and its ancestors, the innermost first."""
        hierarchies = self._hierarchies()
        for line in self._read(f"proc/{pid}/cgroup").splitlines():
            _, _, rest = line.partition(":")
            kinds, _, path = rest.partition(":")
            mount = hierarchies.get("memory" if "memory" in kinds.split(",") else kinds)
            if mount is None or (kinds and "memory" not in kinds.split(",")):
                continue
            top, inside = mount
            # In a container, the mount may show only the container's own group.
            below = path[len(inside) :] if inside != "/" and path.startswith(inside) else path
            parts = [part for part in below.split("/") if part and part != ".."]
            for length in range(len(parts), -1, -1):
                group = "/".join([top.strip("/"), *parts[:length]])
                if os.path.isdir(os.path.join(self._root, group)):
                    yield group

    def _hierarchies(self) -> dict[str, tuple[str, str]]:
        """Returns mount point and mounted root of the hierarchies: "memory" for cgroup v1, "" for v2."""
        found: dict[str, tuple[str, str]] = {}
        for line in self._read("proc/self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            if kind[0] == "cgroup" and "memory" in kind[2].split(","):
                found["memory"] = (fields[4], fields[3])
            elif kind[0] == "cgroup2":
                found[""] = (fields[4], fields[3])
        return found

    def _read(self, path: str) -> str:
        return text_of(os.path.join(self._root, path))
