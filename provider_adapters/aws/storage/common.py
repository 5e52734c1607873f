"""Shared by all kinds of volumes on EC2: types, tags, users of a volume, and prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from provider_adapters.aws import pages
from provider_adapters.aws.errors import code_of, explained

VOLUME_TAG = "flowlite:volume"
"""Tag of resources that flowlite created: the name of the volume."""
VOLUMES_TAG = "flowlite:volumes"
"""Tag of instances: the names of the volumes that their task has mounted, separated by spaces."""

GROUP_NAME = "flowlite-volumes"
"""The security group of mount targets, and of the instances that use them; one in each VPC, never removed."""

Clients = Callable[[str], Any]
"""Returns the boto3 client of a service ("ec2", "efs", "fsx") in the region."""

Prices = Callable[[str], float | None]
"""Returns US dollars per GB and month of a kind of storage (`catalog.regions.DISK`, `FILES`); None if unknown."""

_ALIVE = ("pending", "running", "shutting-down", "stopping", "stopped")
# The prefix of a service in policies, if it differs from boto3's name.
_PREFIXES = {"efs": "elasticfilesystem"}


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


class Answered(Exception):
    """AWS answered with an error that the caller expects."""

    def __init__(self, code: str, response: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.response = response


class Service:
    """A client of one service in the region that raises flowlite's errors.

    Args:
        name: As boto3 calls it.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self._name = name

    def call(self, operation: str, *expected: str, **parameters: Any) -> Any:
        """Makes a call.

        Args:
            expected: Codes of errors that the caller handles.

        Raises:
            Answered: AWS answered with one of these.
            ProviderError: AWS answered with another error.
        """
        from botocore import xform_name

        method = getattr(self._clients(self._name), xform_name(operation))
        with self._explained(operation, expected):
            return method(**parameters)

    def all(self, operation: str, key: str, **parameters: Any) -> list[dict[str, Any]]:
        """The entries under a key of a listing, over all its pages."""
        from botocore import xform_name

        client = self._clients(self._name)
        with self._explained(operation, ()):
            return pages.entries(client, xform_name(operation), key, **parameters)

    @contextmanager
    def _explained(self, operation: str, expected: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            code = code_of(error)
            if code in expected:
                raise Answered(code, getattr(error, "response", {})) from error
            with explained(f"{_PREFIXES.get(self._name, self._name)}:{operation}"):
                raise


def tags_of(listed: Mapping[str, Any]) -> dict[str, str]:
    """The tags in an entry of AWS's listings."""
    return {tag["Key"]: tag["Value"] for tag in listed.get("Tags") or ()}


def as_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in the format of requests to AWS."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def named(listed: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The entries of the volume of that name: created by flowlite or, if there is none, named so by other means."""
    both = [(tags_of(each), each) for each in listed]
    ours = [each for tags, each in both if tags.get(VOLUME_TAG) == name]
    return ours or [each for tags, each in both if tags.get("Name") == name]


def users_of(ec2: Service) -> dict[str, list[str]]:
    """By the name or id of a volume, as a task has it: the tasks that have it mounted, and on which instances."""
    reservations = ec2.all(
        "DescribeInstances",
        "Reservations",
        Filters=[
            {"Name": "tag-key", "Values": [VOLUMES_TAG]},
            {"Name": "instance-state-name", "Values": list(_ALIVE)},
        ],
        PaginationConfig={"PageSize": pages.PAGE},
    )
    found: dict[str, list[str]] = {}
    for instance in (each for reservation in reservations for each in reservation["Instances"]):
        tags = tags_of(instance)
        who = f"{tags.get('flowlite:task', 'an instance')} ({instance['InstanceId']})"
        for name in tags.get(VOLUMES_TAG, "").split():
            found.setdefault(name, []).append(who)
    return found
