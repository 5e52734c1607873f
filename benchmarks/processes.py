"""The processes of one FLOW_HOME and their memory, read from /proc (Linux only)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MB = 2**20


@dataclass(frozen=True)
class Process:
    """One living process."""

    pid: int
    command: str

    def status(self, field: str) -> float:
        """A memory field of /proc/PID/status, in MB; 0 if the process is gone."""
        return _field(f"/proc/{self.pid}/status", field)

    def share(self) -> float:
        """Its proportional share of the memory it is mapped to, in MB; 0 if it is gone."""
        return _field(f"/proc/{self.pid}/smaps_rollup", "Pss")


def of_home(home: Path) -> list[Process]:
    """All processes that were started under a FLOW_HOME, this one left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            marks = command.encode() + Path("/proc", name, "environ").read_bytes()
            if str(home).encode() in marks and int(name) != os.getpid():
                found.append(Process(int(name), command.strip()))
    return found


class PeakMemory:
    """Samples the memory of all processes of a FLOW_HOME while a block runs; `mb` is the largest sum seen."""

    def __init__(self, home: Path, every: float = 0.02) -> None:
        self.mb = 0.0
        self._home = home
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(self._every):
            self.mb = max(self.mb, sum(process.share() for process in of_home(self._home)))


def wait_for(find: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Polls until `find` is true. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while not find():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        time.sleep(0.005)


def _field(path: str, name: str) -> float:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024 / MB
    return 0.0
