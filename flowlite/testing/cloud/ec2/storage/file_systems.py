"""EFS: each mount target has a file server in the box's network, filtered by its security groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends

from flowlite.testing.cloud.ec2.life import Lives
from flowlite.testing.cloud.ec2.names import ACCOUNT

SECONDS = 0.3


class FileSystems:
    """File systems and their servers. The methods run under the API's lock.

    Attributes:
        seconds: How long it takes to create a file system or a mount target.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._systems: set[str] = set()
        self._targets: set[str] = set()
        self._day = 0
        self.seconds = SECONDS

    def forget(self) -> None:
        """Forgets all file systems."""
        self._day += 1
        self._systems.clear()
        self._targets.clear()
        self.seconds = SECONDS

    def is_new(self, system: str) -> bool:
        """Whether a file system is not yet ready for mount targets."""
        found = (b.file_systems_by_id.get(system) for b in self._backends())
        return any(each is not None and each.life_cycle_state == "creating" for each in found)

    def measure(self) -> None:
        """Updates the sizes that listings show."""
        for backend in self._backends():
            for id, system in backend.file_systems_by_id.items():
                system._size_value = self._lives.machines.share_size(id)

    def follow(self) -> None:
        """Starts and ends servers, to match the mount targets after a call."""
        machines = self._lives.machines
        systems: dict[str, Any] = {}
        targets: dict[str, Any] = {}
        for backend in self._backends():
            systems |= backend.file_systems_by_id
            targets |= backend.mount_targets_by_id
        for id in self._targets - set(targets):
            machines.stop_serving(id)
        for id in self._systems - set(systems):
            machines.remove_share(id)
        for id in set(targets) - self._targets:
            targets[id].ip_address = machines.serve(id, targets[id].file_system_id)
            self._make(targets[id])
        for id in set(systems) - self._systems:
            self._make(systems[id])
        self._systems, self._targets = set(systems), set(targets)

    def groups(self) -> Iterator[tuple[str, list[Any]]]:
        """Each server with its security groups."""
        for region, backend in efs_backends.get(ACCOUNT, {}).items():
            ec2 = ec2_backends[ACCOUNT][region]
            for id, target in backend.mount_targets_by_id.items():
                asked = target.security_groups or []
                found = [ec2.get_security_group_from_id(group) for group in asked]
                usual = ec2.get_default_security_group(target.vpc_id)
                yield id, [group for group in found if group] if asked else [usual]

    def _backends(self) -> list[Any]:
        return list(efs_backends.get(ACCOUNT, {}).values())

    def _make(self, made: Any) -> None:
        made.life_cycle_state = "creating"
        self._later(lambda: setattr(made, "life_cycle_state", "available"))

    def _later(self, act: Callable[[], None]) -> None:
        day = self._day

        def run() -> None:
            with self._lives.lock:
                if day == self._day:
                    act()

        timer = threading.Timer(self.seconds, run)
        timer.daemon = True
        timer.start()
