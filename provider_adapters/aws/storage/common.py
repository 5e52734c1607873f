"""Shared by all kinds of volumes on EC2: types, tags, users of a volume, and prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from provider_adapters.aws import pages
from provider_adapters.aws.requests import ALIVE, of_tags
from provider_adapters.aws.service import Service

VOLUME_TAG = "flowlite:volume"
"""Tag of resources that flowlite created: the name of the volume."""
VOLUMES_TAG = "flowlite:volumes"
"""Tag of instances: the names of the volumes that their task has mounted, separated by spaces."""

GROUP_NAME = "flowlite-volumes"
"""The security group of mount targets, and of the instances that use them; one in each VPC, never removed."""

Prices = Callable[[str], float | None]
"""Returns US dollars per GB and month of a kind of storage (`catalog.regions.DISK`, `FILES`); None if unknown."""


@dataclass(frozen=True, slots=True)
class LaunchLocation:
    """The location of the instances of a launch.

    Attributes:
        zone: Name of the availability zone.
        subnet: The subnet of the instances.
        group: Id of the security group that `Volumes.ready` returned, and that the instances have.
        devices: The names of the devices of the disks that the instances have from their image.
    """

    zone: str
    vpc: str
    subnet: str
    group: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VolumeState:
    """The state of one volume, for the plan.

    Attributes:
        entry: {"kind", "id", ...}: values for the plan.
        note: A sentence for the user, or "".
        zone: The zone it is bound to, or "".
    """

    entry: dict[str, Any]
    note: str = ""
    zone: str = ""


def named(listed: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The entries of the volume of that name: created by flowlite or, if there is none, named so by other means."""
    both = [(of_tags(each), each) for each in listed]
    ours = [each for tags, each in both if tags.get(VOLUME_TAG) == name]
    return ours or [each for tags, each in both if tags.get("Name") == name]


def users_of(ec2: Service) -> dict[str, list[str]]:
    """By the name or id of a volume, as a task has it: the tasks that have it mounted, and on which instances."""
    reservations = ec2.all(
        "DescribeInstances",
        "Reservations",
        Filters=[
            {"Name": "tag-key", "Values": [VOLUMES_TAG]},
            {"Name": "instance-state-name", "Values": list(ALIVE)},
        ],
        PaginationConfig={"PageSize": pages.PAGE},
    )
    found: dict[str, list[str]] = {}
    for instance in (each for reservation in reservations for each in reservation["Instances"]):
        tags = of_tags(instance)
        who = f"{tags.get('flowlite:task', 'an instance')} ({instance['InstanceId']})"
        for name in tags.get(VOLUMES_TAG, "").split():
            found.setdefault(name, []).append(who)
    return found
