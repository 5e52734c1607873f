"""Named volumes on EC2: found or created for a task, and described to its nodes.

A file volume is an EFS file system, or an FSx for Lustre one that is named by its id; a block volume is an EBS disk.
The steps of a launch:

    plan(config)        what exists and what would be created; notes, and the zones to which a disk binds the launch
    check_free(…)       before each round of RunInstances: no other task uses a disk
    ready(volumes, vpc) before RunInstances: file systems exist; returns the security groups all instances must have
    attach(volumes, …)  after it, repeatedly: reachable from the launch's zone, disks attached; returns what each
                        node has to mount

The results of `plan` and `ready` are JSON, to be kept in the plan and in the record of the launch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, NotFound, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import VolumeInfo
from provider_adapters.aws.catalog.regions import DISK
from provider_adapters.aws.service import BotoClients, Service
from provider_adapters.aws.storage.common import (
    VOLUMES_TAG,
    LaunchLocation,
    Prices,
    VolumeState,
    users_of,
)
from provider_adapters.aws.storage.ebs import Disks
from provider_adapters.aws.storage.efs import FileSystems, group_of
from provider_adapters.aws.storage.fsx import LustreSystems
from provider_adapters.durable import make_directory

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

SOURCES = "/mnt/flowlite"
"""Where volumes are mounted on a node; workers see them at the paths that were asked for."""
_LONGEST_TAG = 256
_REGIONS = "regions"


@dataclass(frozen=True, slots=True)
class Planned:
    """The volumes of a plan.

    Attributes:
        volumes: For `Plan.options`, and for `ready` and `attach`.
        notes: Sentences for `Plan.notes`.
        zones: The launch must be in this zone; () for any.
        costs: For `Plan.not_included`.
    """

    volumes: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()


def tags_for(volumes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tags of the instances of a launch with these volumes, by which a volume is known to be in use."""
    names = " ".join(sorted({str(each["name"]) for each in volumes}))
    return {VOLUMES_TAG: names[:_LONGEST_TAG]} if names else {}


def regions_with_volumes(directory: Path) -> list[str]:
    """The regions in which volumes were ever created or used, according to the directory of `Volumes`."""
    with suppress(FileNotFoundError):
        return sorted(each.name for each in (directory / _REGIONS).iterdir())
    return []


class Volumes:
    """The volumes of one account in one region.

    Args:
        region: Its name.
        clients: Returns boto3 clients.
        directory: Directory in which creations in progress and regions with volumes are recorded
            (FLOW_HOME/aws/volumes).
        tags: Tags of new volumes, such as the owner; never a task, since volumes outlive tasks.
        prices: Returns what storage costs, for listings and notes.
        pause: Sleeps for a number of seconds.
    """

    def __init__(
        self,
        region: str,
        clients: BotoClients,
        directory: Path,
        tags: Mapping[str, str] | None = None,
        prices: Prices = lambda _: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._region = region
        self._directory = directory
        self._ec2 = Service(clients, "ec2")
        self._prices = prices
        self._files = FileSystems(region, clients, prices, dict(tags or {}), pause)
        self._disks = Disks(region, clients, prices, directory, dict(tags or {}))
        self._lustre = LustreSystems(clients)

    # The steps of a launch

    def plan(self, config: TaskConfig) -> Planned:
        """Which volumes of a task exist, and which would be created. Creates nothing.

        Raises:
            ConfigError: A volume does not exist and has no size to create it with, or two are bound to different zones.
        """
        volumes: list[dict[str, Any]] = []
        notes: list[str] = []
        tied: dict[str, str] = {}
        for path, volume in config.volumes.items():
            self._check_kind(path, volume.name, volume.interface)
            found = self._find(volume.name, volume.interface, volume.size_gb)
            entry = {"name": volume.name, "path": path, "interface": volume.interface}
            volumes.append({**entry, **found.entry})
            notes += [found.note] if found.note else []
            tied |= {volume.name: found.zone} if found.zone else {}
        if len(set(tied.values())) > 1:
            where = ", ".join(f"{name!r} is in {zone}" for name, zone in tied.items())
            raise ConfigError(
                f"volumes: {where}; nodes of one launch are in one zone, so use volumes of one zone"
            )
        costs = [self._cost(each) for each in volumes]
        return Planned(
            tuple(volumes), tuple(dict.fromkeys(notes)), tuple(set(tied.values())), tuple(costs)
        )

    def made_since(self, volumes: Sequence[Mapping[str, Any]]) -> list[str]:
        """The zones of those disks that were still to be made when their task was planned, and are there now."""
        new = [str(each["name"]) for each in volumes if each["kind"] == "ebs" and not each["id"]]
        found = [disk for name in new if (disk := self._disks.known(name)) is not None]
        return sorted({disk.zone for disk in found})

    def check_free(self, volumes: Sequence[Mapping[str, Any]], task: str) -> None:
        """Raises ProviderError if another task uses a disk, so that a launch would be useless."""
        for each in volumes:
            if each["kind"] == "ebs":
                self._disks.check_free(each, task)

    def ready(
        self, volumes: Sequence[Mapping[str, Any]], vpc: str
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Creates missing file systems. Disks are created once the zone is known.

        Returns:
            The volumes for `attach`, and ids of security groups that all instances must have, in addition to their own.
        """
        if volumes:
            self._record_region()
        made = [
            {**each, "id": self._files.ensure(str(each["name"]))}
            if each["kind"] == "efs" and not each["id"]
            else dict(each)
            for each in volumes
        ]
        by_network = any(each["kind"] != "ebs" for each in made)
        return made, [group_of(self._ec2, vpc)] if by_network else []

    def attach(
        self,
        volumes: Sequence[Mapping[str, Any]],
        place: LaunchLocation,
        instances: Sequence[str],
        task: str,
    ) -> list[dict[str, Any]]:
        """What each node has to mount (`NodeSettings.volumes`), once it is available in that zone.

        To be called until it returns, and not again for that launch.

        Args:
            volumes: As `ready` returned them.
            instances: Ids of the running instances.
            task: Their task.

        Raises:
            LaunchPending: Something is still being created; to be called again after `retry_after`.
            ProviderError: A volume is unavailable.
        """
        return [
            self._attach(number, each, place, instances, task)
            for number, each in enumerate(volumes)
        ]

    def _attach(
        self,
        number: int,
        volume: Mapping[str, Any],
        place: LaunchLocation,
        instances: Sequence[str],
        task: str,
    ) -> dict[str, Any]:
        entry = {name: volume[name] for name in ("name", "path", "interface")}
        entry["source"] = f"{SOURCES}/{volume['name']}"
        if volume["kind"] == "efs":
            return {**entry, **self._files.reach(volume, place)}
        if volume["kind"] == "lustre":
            return {**entry, **self._lustre.reach(volume)}
        return {**entry, **self._disks.attach(number, volume, place, instances, task)}

    def _record_region(self) -> None:
        directory = self._directory / _REGIONS
        make_directory(directory)
        (directory / self._region).touch(mode=0o600)

    def _cost(self, volume: Mapping[str, Any]) -> str:
        """The volume and what it costs, in words."""
        text = f"the volume {volume['name']}"
        if volume["kind"] == "efs":
            return f"{text} (by what is stored, read and written)"
        price = self._prices(DISK) if volume["kind"] == "ebs" else None
        return f"{text} (${price * volume['size_gb']:.2f} per month)" if price else text

    def _check_kind(self, path: str, name: str, interface: str) -> None:
        """Raises ConfigError for a name that only exists with the other interface, which was omitted or mistaken."""
        is_block = interface == "block"
        here, other = (self._disks, self._files) if is_block else (self._files, self._disks)
        foreign = name.startswith("fs-" if is_block else "vol-")
        if foreign or (not here.known(name) and other.known(name)):
            right = "file" if is_block else "block"
            raise ConfigError(
                f"volumes: {path!r}: {name!r} has the interface {right!r}, and {interface!r} was asked for; say so: "
                f"`--volume {path}={name},interface={right}`, or 'interface': {right!r} beside its name in volumes="
            )

    def _find(self, name: str, interface: str, size_gb: float | None) -> VolumeState:
        if interface == "block":
            return self._disks.find(name, size_gb)
        if not name.startswith("fs-"):
            return self._files.find(name, size_gb)
        # Both kinds of file systems have such ids.
        return self._files.known(name) or self._lustre.find(name) or self._files.find(name, None)

    # `flow volumes`

    def create(
        self, name: str, size_gb: float | None, interface: str, zones: Sequence[str] = ()
    ) -> VolumeInfo:
        """Creates a volume, or returns the existing one of that name.

        Args:
            zones: The zones that the settings allow; a disk is created in the first.
        """
        block = interface == "block"
        self._record_region()
        made = self._disks.create(name, size_gb, zones) if block else self._files.ensure(name)
        listed = next((each for each in self.list() if each.location == made), None)
        return listed or VolumeInfo(name, "aws", interface, size_gb, made, region=self._region)

    def list(self) -> list[VolumeInfo]:
        """All volumes that flowlite created, by name."""
        found = [*self._files.all(), *self._disks.all()]
        users = users_of(self._ec2) if found else {}

        def used_by(volume: VolumeInfo) -> tuple[str, ...]:
            # A task may name a volume by its id.
            told = (*users.get(volume.name, ()), *users.get(volume.location, ()))
            return told or volume.used_by

        return [
            dataclasses.replace(each, used_by=used_by(each))
            for each in sorted(found, key=lambda each: (each.name, each.location))
        ]

    def delete(self, name: str) -> None:
        """Deletes a volume and its content.

        Raises:
            NotFound: There is none.
            ProviderError: It is in use, or was not created by flowlite.
        """
        found = [each for each in self.list() if name in (each.name, each.location)]
        if not found:
            raise NotFound(
                f"no volume {name!r} that flowlite made in {self._region}; `flow volumes list` shows them"
            )
        if len(found) > 1:
            ids = ", ".join(each.location for each in found)
            raise ConfigError(f"volume {name!r} is the name of several: {ids}; give the id of one")
        volume = found[0]
        if volume.used_by:
            raise ProviderError(
                f"volume {name!r} is used by {', '.join(volume.used_by)}; wait for the end, or cancel it"
            )
        if volume.interface == "block":
            self._disks.delete(volume.location)
        else:
            self._files.delete(volume.location)
