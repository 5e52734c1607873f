"""What the cloud's instances stand on: real machines, or none at all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from flowlite.testing.cloud.machines import Gpus


class Machine(Protocol):
    """A machine that was booted."""

    @property
    def address(self) -> str:
        """Where the other machines reach it."""

    @property
    def public_address(self) -> str:
        """Where everybody reaches it."""


class Ground(Protocol):
    """Makes and ends machines. `flowlite.testing.cloud.machines.Machines` makes real ones."""

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
        """A fresh machine, that starts after `delay` and runs the script as root. Raises if there is no place."""

    def end(self, name: str) -> None:
        """It is shut down and gone. Unknown ones are no error."""

    def power_cut(self, name: str) -> None:
        """It is gone without a word."""

    def console(self, name: str) -> str:
        """What it said at boot."""

    def place(self, name: str) -> str:
        """The name of what a machine is made of; "" for one that is not there."""

    def write(self, name: str, path: str, text: str | None) -> None:
        """Puts a file on a machine; None takes it away. One that does not run any more is no error."""

    def make_disk(self, disk: str, size: int) -> None:
        """A blank disk of so many bytes."""

    def attach_disk(self, disk: str, name: str, device: str) -> bool:
        """Has a disk appear on a machine as /dev/DEVICE; False as long as an earlier one still has it mounted."""

    def remove_disk(self, disk: str) -> None:
        """A disk that no machine has, and what is on it. One that is not there is no error."""


class PaperMachine:
    """A machine that exists on paper: it has an address, and nobody answers there."""

    def __init__(self, number: int) -> None:
        self.address = f"10.99.{number // 250}.{number % 250 + 1}"
        self.public_address = f"192.0.2.{number % 250 + 1}"


class PaperGround:
    """Machines on paper, for whoever needs the API only.

    Attributes:
        running: Names of the machines that are up.
        scripts: The start-up script of every machine there ever was, by its name.
        files: What was written on machines, by machine and path.
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
        """Notes that it runs."""
        with self._lock:
            self.running.add(name)
            self.scripts[name] = script
            return PaperMachine(len(self.scripts))

    def end(self, name: str) -> None:
        """Notes that it does not run."""
        with self._lock:
            self.running.discard(name)

    power_cut = end

    def place(self, name: str) -> str:
        """It is made of nothing else."""
        return name if name in self.running else ""

    def laptop_connections(self) -> str:
        """Connections of this network namespace: the callers are in it."""
        return Path("/proc/thread-self/net/tcp").read_text()

    def console(self, name: str) -> str:
        """It said nothing."""
        return ""

    def write(self, name: str, path: str, text: str | None) -> None:
        """Notes the file."""
        with self._lock:
            if text is None:
                self.files.pop((name, path), None)
            elif name in self.running:
                self.files[name, path] = text

    def make_disk(self, disk: str, size: int) -> None:
        """Nothing is written on paper."""

    def attach_disk(self, disk: str, name: str, device: str) -> bool:
        """It is said to be there."""
        return True

    def remove_disk(self, disk: str) -> None:
        """There was none."""
