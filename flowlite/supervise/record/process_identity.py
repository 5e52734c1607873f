"""Identifies a process by its id and start time, so that a reused id is not taken for the old process."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import processes
from flowlite.node.system.atomic_files import write_atomically
from flowlite.state import clock
from flowlite.supervise.record.paths import TaskPaths


@dataclass(frozen=True, slots=True)
class Process:
    """A process id, and the start time of the process in the form the machine reports it."""

    pid: int
    start: str

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain JSON values."""
        return {"pid": self.pid, "start": self.start}

    @property
    def alive(self) -> bool:
        """Whether this process runs. A zombie does not."""
        return self.start != "" and processes.is_alive(self.pid, self.start)


def of_process(pid: int) -> Process:
    """Returns the process that has this id now."""
    return Process(pid, processes.start_of(pid) or "")


def noted_supervisor(home: Path, task_id: str) -> Process | None:
    """Returns the last process started to supervise a task, alive or not. None if none was noted."""
    try:
        noted = json.loads(TaskPaths(home, task_id).supervisor.read_bytes())
        return Process(int(noted["pid"]), str(noted["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def has_supervisor(home: Path, task_id: str) -> bool:
    """Whether the last process started to supervise the task is running."""
    last = noted_supervisor(home, task_id)
    return last is not None and last.alive


def note_supervisor(home: Path, task_id: str, process: Process) -> None:
    """Notes a process as the one that supervises a task. Does nothing if it cannot be written."""
    with suppress(OSError):
        noted = json.dumps(process.to_json()).encode()
        write_atomically(TaskPaths(home, task_id).supervisor, noted)


def began() -> float:
    """Unix time at which this process was started. Linux only."""
    ticks = int(processes.start_of(os.getpid()) or 0)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def owner(process: Process | None = None) -> str:
    """Returns a process of this machine (default: this one) as the owner of a lease."""
    it = process or of_process(os.getpid())
    return f"{_place()}|{it.pid}|{it.start}"


def of_owner(lease_owner: str) -> Process | None:
    """Returns the process that owns a lease; None if it cannot be one that is seen from here."""
    place, process = _parsed(lease_owner)
    return process if place == _place() else None


def provably_dead(lease_owner: str) -> bool:
    """Whether the owner of a lease ran on this machine and does not run any more. False if that cannot be known."""
    place, process = _parsed(lease_owner)
    return process is not None and _comparable(place) and not process.alive


def _parsed(lease_owner: str) -> tuple[str, Process | None]:
    place, _, rest = lease_owner.partition("|")
    pid, _, start = rest.partition("|")
    return place, Process(int(pid), start) if pid.isdigit() and start else None


def _comparable(place: str) -> bool:
    here, there = _place().split("/"), place.split("/")
    if len(there) != 3 or here[0] != there[0]:
        return False
    # A process of an earlier boot has ended. Processes of another process namespace cannot be seen from here.
    return here[1] != there[1] or here[2] == there[2]


@functools.cache
def _place() -> str:
    """Returns `host/boot/process namespace`, the scope in which a process id is unique."""
    host = socket.gethostname().replace("/", "_").replace("|", "_")
    boot, namespace = clock.boot() or "-", "-"
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{host}/{boot}/{namespace}"
