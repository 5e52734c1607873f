"""What instances run on: real machines, or none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from flowlite.testing.cloud.machines import Gpus


class Machine(Protocol):
    """A booted machine."""

    @property
    def address(self) -> str:
        """Its address for other machines."""

    @property
    def public_address(self) -> str:
        """Its public address."""


class Ground(Protocol):
    """Starts and ends machines. `flowlite.testing.cloud.machines.Machines` starts real ones."""

    def boot(
        self,
        name: str,
        *,
        script: str,
        authorized_keys: Sequence[str],
        user: str,
        hostname: str,
        gpus: Gpus,
        delay: float,
    ) -> Machine:
        """Starts a machine after `delay`, which runs the script as root. Raises if none is free."""

    def end(self, name: str) -> None:
        """Shuts a machine down. An unknown machine is no error."""

    def power_cut(self, name: str) -> None:
        """Ends a machine without notice."""

    def console(self, name: str) -> str:
        """The machine's console output."""

    def place(self, name: str) -> str:
        """The name of the slot under a machine; "" for a machine that does not exist."""

    def write(self, name: str, path: str, text: str | None) -> None:
        """Writes a file on a machine. None deletes it. A machine that is not running is no error."""

    def make_disk(self, disk: str, size: int) -> None:
        """Creates a blank disk of `size` bytes."""

    def attach_disk(self, disk: str, name: str, device: str) -> bool:
        """Attaches a disk to a machine as /dev/DEVICE. Returns False while an earlier machine still has it mounted."""

    def remove_disk(self, disk: str) -> None:
        """Deletes an unattached disk and its contents. A disk that does not exist is no error."""


class PaperMachine:
    """A machine without hardware: it has an address, at which nothing answers."""

    def __init__(self, number: int) -> None:
        self.address = f"10.99.{number // 250}.{number % 250 + 1}"
        self.public_address = f"192.0.2.{number % 250 + 1}"


class PaperGround:
    """Machines without hardware, for tests that need only the API.

    Attributes:
        running: The names of the running machines.
        scripts: The startup script of every machine since the start, by its name.
        files: The files written to machines, by machine and path.
    """

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.scripts: dict[str, str] = {}
        self.files: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def boot(
        self,
        name: str,
        *,
        script: str,
        authorized_keys: Sequence[str],
        user: str,
        hostname: str,
        gpus: Gpus,
        delay: float,
    ) -> PaperMachine:
        """Records the machine as running."""
        with self._lock:
            self.running.add(name)
            self.scripts[name] = script
            return PaperMachine(len(self.scripts))

    def end(self, name: str) -> None:
        """Records the machine as ended."""
        with self._lock:
            self.running.discard(name)

    power_cut = end

    def place(self, name: str) -> str:
        """The machine's own name, since there are no slots."""
        return name if name in self.running else ""

    def laptop_connections(self) -> str:
        """The connections of this network namespace, which the clients are in."""
        return Path("/proc/thread-self/net/tcp").read_text()

    def console(self, name: str) -> str:
        """Always empty."""
        return ""

    def write(self, name: str, path: str, text: str | None) -> None:
        """Records the file."""
        with self._lock:
            if text is None:
                self.files.pop((name, path), None)
            elif name in self.running:
                self.files[name, path] = text

    def make_disk(self, disk: str, size: int) -> None:
        """Does nothing."""

    def attach_disk(self, disk: str, name: str, device: str) -> bool:
        """Always succeeds."""
        return True

    def remove_disk(self, disk: str) -> None:
        """Does nothing."""
