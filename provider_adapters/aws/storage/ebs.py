"""Block volumes: EBS disks, each in one zone and attached to one instance at a time."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError, ProviderError
from flowlite.provider import LaunchPending, VolumeInfo, kept_size
from flowlite.state import clock
from provider_adapters.aws.catalog.regions import DISK
from provider_adapters.aws.requests import as_tags, of_tags
from provider_adapters.aws.service import Answered, BotoClients, Service
from provider_adapters.aws.storage.common import (
    VOLUME_TAG,
    LaunchLocation,
    Prices,
    VolumeState,
    named,
)
from provider_adapters.durable import make_directory, write_durably

FILESYSTEM = "ext4"
KIND = "gp3"
GIB = 2**30

_GOING = ("deleting", "deleted")
_LETTERS = "fghijklmnop"
_RETRY = 2.0
# EC2's listings show a new disk after this time.
_LISTED_SECONDS = 300.0


class Disks:
    """The disks of one account in one region.

    Args:
        directory: Directory in which creations in progress are recorded.
        tags: Tags of new disks.
    """

    def __init__(
        self,
        region: str,
        clients: BotoClients,
        prices: Prices,
        directory: Path,
        tags: Mapping[str, str],
    ) -> None:
        self._region = region
        self._ec2 = Service(clients, "ec2")
        self._prices = prices
        self._directory = directory
        self._tags = tags

    def known(self, name: str) -> VolumeState | None:
        """The disk of that name or id; None if there is none. Raises ConfigError."""
        disk = self._named(name)
        return None if disk is None else _found(name, disk)

    def find(self, name: str, size_gb: float | None) -> VolumeState:
        """The disk of that name or id, or how it would be created. Raises ConfigError, also if it is in use."""
        disk = self._named(name)
        if disk is not None:
            if reason := self._why_taken(name, disk, task=""):
                raise ConfigError(f"volumes: {reason}")
            found = _found(name, disk)
            kept = kept_size(name, float(disk["Size"]), size_gb)
            return replace(found, note=f"{found.note}; {kept}") if kept else found
        if size_gb is None:
            raise ConfigError(
                f"volumes: there is no disk {name!r} in {self._region}; give size_gb to have it made"
            )
        size = math.ceil(size_gb)
        price = self._prices(DISK)
        cost = f", ${price * size:.2f} per month" if price else ""
        note = (
            f"volume {name} is not there yet and will be made: a disk of {size} GB ({KIND}, encrypted{cost}), which "
            f"stays until `flow volumes delete {name} --provider aws`"
        )
        return VolumeState({"kind": "ebs", "id": "", "size_gb": size}, note)

    def create(self, name: str, size_gb: float | None, zones: Sequence[str]) -> str:
        """The id of the disk of that name; creates it in the first of these zones if missing."""
        disk = self._named(name)
        if disk is not None:
            return str(disk["VolumeId"])
        if size_gb is None:
            raise ConfigError(f"a disk needs a size; give it with --size-gb: {name!r}")
        zone = next(iter(zones), "") or self._first_zone()
        return self._make(name, math.ceil(size_gb), zone)

    def check_free(self, volume: Mapping[str, Any], task: str) -> None:
        """Raises ProviderError if an instance of another task uses the disk."""
        name = str(volume["name"])
        disk = self._named(str(volume["id"] or name))
        if disk and (reason := self._why_taken(name, disk, task)):
            raise reason

    def attach(
        self,
        number: int,
        volume: Mapping[str, Any],
        place: LaunchLocation,
        instances: Sequence[str],
        task: str,
    ) -> dict[str, Any]:
        """What the node needs to mount the disk, once it is attached to the only instance.

        Args:
            number: Index of the volume among those of the task.
            task: The launching task. Another instance of it that has the disk is about to end.

        Raises:
            LaunchPending: The disk is being created or attached, or is still attached to an instance that is
                ending.
            ProviderError: Another instance uses the disk.
        """
        name, zone = str(volume["name"]), place.zone
        if len(instances) != 1:
            raise ConfigError(
                f"volumes: {name!r} is a block volume, which one node alone can use, and there are {len(instances)}"
            )
        disk = self._named(str(volume["id"] or name))
        if disk is None:
            self._make(name, int(volume["size_gb"]), zone)
            raise LaunchPending(f"volume {name!r} is being made", _RETRY)
        if disk["AvailabilityZone"] != zone:
            raise ProviderError(
                f"volume {name!r} is a disk in {disk['AvailabilityZone']}, and the launch is in {zone}; run it again, "
                "so that it is planned there"
            )
        device = _device(number, place.devices)
        held = _attachment(disk)
        if held is None:
            self._attach(disk, instances[0], device)
            raise LaunchPending(f"volume {name!r} is being attached", _RETRY)
        if held["InstanceId"] != instances[0]:
            raise self._taken(name, str(held["InstanceId"]), task)
        if held["State"] != "attached":
            raise LaunchPending(f"volume {name!r} is being attached", _RETRY)
        known = str(held.get("Device") or device)
        return {
            "share": "disk",
            "serial": str(disk["VolumeId"]).replace("-", ""),
            "devices": [known, known.replace("/dev/sd", "/dev/xvd")],
            "size_bytes": int(disk["Size"]) * GIB,
            "filesystem": FILESYSTEM,
        }

    def all(self) -> list[VolumeInfo]:
        """The disks that flowlite created as volumes."""
        disks = self._listed([{"Name": "tag-key", "Values": [VOLUME_TAG]}])
        price = self._prices(DISK) if disks else None
        return [
            VolumeInfo(
                name=of_tags(disk)[VOLUME_TAG],
                provider="aws",
                interface="block",
                size_gb=float(disk["Size"]),
                location=disk["VolumeId"],
                region=str(disk["AvailabilityZone"]),
                used_by=tuple(a["InstanceId"] for a in disk.get("Attachments") or ()),
                price_per_month=round(price * disk["Size"], 6) if price is not None else None,
                created_at=disk["CreateTime"].timestamp(),
            )
            for disk in disks
        ]

    def delete(self, disk: str) -> None:
        """Deletes a disk; AWS itself refuses one that is attached."""
        try:
            self._ec2.call("DeleteVolume", "VolumeInUse", "InvalidVolume.NotFound", VolumeId=disk)
        except Answered as answer:
            if answer.code == "VolumeInUse":
                raise ProviderError(
                    f"{disk} is attached to an instance; wait for its end"
                ) from answer

    # Helpers

    def _listed(self, filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        found = self._ec2.all("DescribeVolumes", "Volumes", Filters=list(filters))
        there = [each for each in found if each["State"] not in _GOING]
        self._forget_requests(there)
        return there

    def _forget_requests(self, disks: Sequence[Mapping[str, Any]]) -> None:
        """Removes the records of requests for disks that are listed, and will not be asked for again."""
        listed = {self._note_of(of_tags(disk).get(VOLUME_TAG, "")) for disk in disks}
        for note in self._directory.glob("*.json"):
            if note.name in listed:
                note.unlink(missing_ok=True)

    def _note_of(self, name: str) -> str:
        """The name of the file that records the request for a disk."""
        return f"{self._region}-{name}.json"

    def _named(self, name: str) -> Mapping[str, Any] | None:
        if name.startswith("vol-"):
            found = self._listed([{"Name": "volume-id", "Values": [name]}])
        else:
            ours = [{"Name": f"tag:{VOLUME_TAG}", "Values": [name]}]
            found = self._listed(ours) or named(
                self._listed([{"Name": "tag:Name", "Values": [name]}]), name
            )
        if len(found) > 1:
            ids = ", ".join(f"{each['VolumeId']} in {each['AvailabilityZone']}" for each in found)
            raise ConfigError(
                f"volumes: {name!r} is the name of several disks: {ids}; use the id of one in its place"
            )
        return found[0] if found else None

    def _make(self, name: str, size: int, zone: str) -> str:
        """Creates a disk. The request is recorded until the disk is listed, and repeated unchanged until it would be.

        EC2 makes one disk for it, also after a crash, or while its listings do not show the new disk yet. A disk that
        is not listed any more was deleted elsewhere, and EC2 refuses its token from then on.
        """
        make_directory(self._directory)
        note = self._directory / self._note_of(name)
        asked = {"size": size, "zone": zone}
        before = json.loads(note.read_bytes()) if note.exists() else {}
        # Another zone or size is another request and needs another token.
        same = asked.items() <= before.items()
        if same and clock.now() - float(before.get("at", 0.0)) < _LISTED_SECONDS:
            asked = before
        else:
            asked |= {"token": uuid.uuid4().hex, "at": clock.now()}
        write_durably(note, json.dumps(asked))
        made = self._ec2.call(
            "CreateVolume",
            ClientToken=asked["token"],
            AvailabilityZone=zone,
            Size=size,
            VolumeType=KIND,
            Encrypted=True,
            TagSpecifications=[
                {
                    "ResourceType": "volume",
                    "Tags": as_tags({**self._tags, VOLUME_TAG: name, "Name": name}),
                }
            ],
        )
        return str(made["VolumeId"])

    def _attach(self, disk: Mapping[str, Any], instance: str, device: str) -> None:
        if disk["State"] != "available":
            return
        with suppress(Answered):
            self._ec2.call(
                "AttachVolume",
                # The state has changed, or the instance does not run yet; the next check will show.
                *("VolumeInUse", "IncorrectState", "IncorrectInstanceState"),
                VolumeId=disk["VolumeId"],
                InstanceId=instance,
                Device=device,
            )

    def _why_taken(self, name: str, disk: Mapping[str, Any], task: str) -> ProviderError | None:
        """Why a disk is unavailable for good; None if it is free, or its instance is ending."""
        held = _attachment(disk)
        if held is None:
            return None
        reason = self._taken(name, str(held["InstanceId"]), task)
        return None if isinstance(reason, LaunchPending) else reason

    def _taken(self, name: str, instance: str, task: str) -> ProviderError:
        """The error for a disk that another instance uses; LaunchPending if that instance is ending."""
        found = self._ec2.all(
            "DescribeInstances",
            "Reservations",
            Filters=[{"Name": "instance-id", "Values": [instance]}],
        )
        holder = found[0]["Instances"][0] if found else {}
        state = str(holder.get("State", {}).get("Name", "gone"))
        whose_task = of_tags(holder).get("flowlite:task")
        # EC2 may report an instance that the task has just ended as running for a while.
        if state in ("shutting-down", "terminated", "gone") or (task and whose_task == task):
            return LaunchPending(
                f"volume {name!r} is still attached to {instance}, which is ending", _RETRY
            )
        whose = f"the task {whose_task} on {instance}" if whose_task else instance
        return ProviderError(
            f"volume {name!r} is used by {whose}, and a disk belongs to one at a time; wait for its end, or cancel it"
        )

    def _first_zone(self) -> str:
        """A zone in which instances can run, for a disk without any other preference."""
        zones = {
            str(each["AvailabilityZone"]) for each in self._ec2.all("DescribeSubnets", "Subnets")
        }
        if not zones:
            raise ConfigError(
                f"{self._region} has no subnets, so no instance can be there to use a disk; set zones under [aws]"
            )
        return min(zones)


def _device(number: int, taken: Sequence[str]) -> str:
    """The name of the device for a disk, which is none of the image's: /dev/sdf and /dev/xvdf are the same one."""
    letters = [each for each in _LETTERS if f"/dev/sd{each}" not in taken]
    letters = [each for each in letters if f"/dev/xvd{each}" not in taken] or list(_LETTERS)
    return f"/dev/sd{letters[number % len(letters)]}"


def _found(name: str, disk: Mapping[str, Any]) -> VolumeState:
    zone = str(disk["AvailabilityZone"])
    entry = {"kind": "ebs", "id": disk["VolumeId"], "size_gb": disk["Size"]}
    return VolumeState(entry, f"volume {name} is a disk in {zone}, and so is this launch", zone)


def _attachment(disk: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The attachment of a disk, or None."""
    return next((a for a in disk.get("Attachments") or () if a["State"] != "detached"), None)
