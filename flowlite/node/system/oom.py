"""Whether the kernel has ended a process for lack of memory: read from its own counters, not guessed from a signal."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
# A limit of version 1 that means none: the largest number of whole pages.
_NO_LIMIT = 1 << 60


class OomWatch:
    """The counters that concern one process, as they were when the watch began.

    Args:
        pid: The process; what it starts is in its control group too, unless it sees to that itself.
        root: Where `/proc` and what is mounted are looked for.
    """

    def __init__(self, pid: int, root: str = "/") -> None:
        self._root = root
        self._groups = list(self._groups_of(pid))
        self._before = self._counts()

    def why(self) -> str:
        """What the counters say of a kill since then, for parentheses; "" where there are none to read."""
        before, now = self._before, self._counts()
        if before is None or now is None:
            return ""
        if now[0] > before[0]:
            return f"out of memory: the kernel ended it, {self._room()}"
        if now[1] > before[1]:
            return "out of memory? the kernel has ended a process of this machine for it meanwhile"
        return "not by the kernel for lack of memory"

    def starved(self) -> bool:
        """Whether the kernel has ended a process of its control group since then."""
        now = self._counts()
        return now is not None and self._before is not None and now[0] > self._before[0]

    def _counts(self) -> tuple[int, int] | None:
        """Kills in its control group, and on the machine; the latter counts all of the former."""
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
        """The memory there was."""
        limits = []
        for group in self._groups:
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = self._read(f"{group}/{name}").strip()
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    limits.append(int(text))
        total = re.search(r"^MemTotal:\s+(\d+) kB", self._read("proc/meminfo"), re.MULTILINE)
        machine = int(total[1]) * 1024 if total is not None else 0
        if limits and (not machine or min(limits) < machine):
            return f"whose control group may have {_size(min(limits))}"
        return f"the machine has {_size(machine)}" if machine else "no memory was left"

    def _groups_of(self, pid: int) -> Iterator[str]:
        """Directories of its control group for memory and of those above it, from the inside out."""
        mounts = self._mounts()
        for line in self._read(f"proc/{pid}/cgroup").splitlines():
            _, _, rest = line.partition(":")
            kinds, _, path = rest.partition(":")
            mount = mounts.get("memory" if "memory" in kinds.split(",") else kinds)
            if mount is None or (kinds and "memory" not in kinds.split(",")):
                continue
            top, inside = mount
            # In a container, what is mounted may be the group of the container alone.
            below = path[len(inside) :] if inside != "/" and path.startswith(inside) else path
            parts = [part for part in below.split("/") if part and part != ".."]
            for length in range(len(parts), -1, -1):
                group = "/".join([top.strip("/"), *parts[:length]])
                if os.path.isdir(os.path.join(self._root, group)):
                    yield group

    def _mounts(self) -> dict[str, tuple[str, str]]:
        """Where the hierarchies are: "memory" of version 1, "" of version 2; each with what of it is mounted."""
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
        try:
            with open(os.path.join(self._root, path), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
