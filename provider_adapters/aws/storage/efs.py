"""File volumes: EFS file systems, with a mount target in the zone of the launch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flowlite.errors import ConfigError, ProviderError
from flowlite.provider import LaunchPending, VolumeInfo
from flowlite.state import clock
from provider_adapters.aws.catalog.regions import FILES, HOURS_PER_MONTH
from provider_adapters.aws.requests import as_tags, of_tags
from provider_adapters.aws.service import Answered, BotoClients, Service
from provider_adapters.aws.storage.common import (
    GROUP_NAME,
    VOLUME_TAG,
    LaunchLocation,
    Prices,
    VolumeState,
    named,
)
from provider_adapters.aws.storage.efs_usage import byte_seconds

OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
"""AWS's recommended options for EFS; `noresvport` keeps a mount alive when its connection is re-established."""
PORT = 2049
GB = 2**30

_STILL = ("FileSystemInUse", "FileSystemNotFound")
_GOING = ("deleting", "deleted")
_MAKING_GROUP = "the security group of the volumes is being made"
_RETRY = 3.0
_TRIES = 100
_LONGEST_TOKEN = 64


class FileSystems:
    """The file systems of one account in one region.

    Args:
        tags: Tags of new file systems.
        pause: Sleeps for a number of seconds.
    """

    def __init__(
        self,
        region: str,
        clients: BotoClients,
        prices: Prices,
        tags: Mapping[str, str],
        pause: Callable[[float], None],
    ) -> None:
        self._region = region
        self._efs = Service(clients, "efs")
        self._ec2 = Service(clients, "ec2")
        self._metrics = Service(clients, "cloudwatch")
        self._prices = prices
        self._tags = tags
        self._pause = pause

    def known(self, name: str) -> VolumeState | None:
        """The file system of that name or id; None if there is none. Raises ConfigError."""
        system = self._named(name)
        if system is None:
            return None
        zone = str(system.get("AvailabilityZoneName") or "")
        note = f"volume {name} is in {zone} alone, and so is this launch" if zone else ""
        return VolumeState({"kind": "efs", "id": system["FileSystemId"]}, note, zone)

    def find(self, name: str, size_gb: float | None) -> VolumeState:
        """The file system of that name or id, or how it would be created. Raises ConfigError."""
        if (found := self.known(name)) is not None:
            return found
        if size_gb is None:
            raise ConfigError(
                f"volumes: there is no {name!r} in {self._region}; give size_gb to have it made, or make it with "
                f"`flow volumes create {name} --provider aws --region {self._region}`"
            )
        price = self._prices(FILES)
        cost = f", ${price:g} per GB and month" if price else ""
        note = (
            f"volume {name} is not there yet and will be made: EFS, encrypted; it grows with what is written and is "
            f"charged by that{cost}, not by size_gb; it stays until `flow volumes delete {name} --provider aws`"
        )
        return VolumeState({"kind": "efs", "id": ""}, note)

    def ensure(self, name: str) -> str:
        """The id of the file system of that name; creates it if missing.

        The idempotency token is the name, so there will be only one, even after lost answers or concurrent calls.
        """
        system = self._named(name)
        if system is not None:
            return str(system["FileSystemId"])
        try:
            made = self._efs.call(
                "CreateFileSystem",
                "FileSystemAlreadyExists",
                CreationToken=_creation_token(name),
                PerformanceMode="generalPurpose",
                ThroughputMode="elastic",
                Encrypted=True,
                Tags=as_tags({**self._tags, VOLUME_TAG: name, "Name": name}),
            )
        except Answered as answer:
            # Another process has just created it; or one of that name was deleted, which takes EFS a while.
            if self._is_going(str(answer.response.get("FileSystemId", ""))):
                raise LaunchPending(
                    f"the volume {name!r} of before is still being deleted by EFS", _RETRY
                ) from answer
            known = answer.response.get("FileSystemId") or (self._named(name) or {}).get(
                "FileSystemId"
            )
            if not known:
                raise LaunchPending(f"volume {name!r} is being made", _RETRY) from answer
            return str(known)
        return str(made["FileSystemId"])

    def reach(self, volume: Mapping[str, Any], place: LaunchLocation) -> dict[str, Any]:
        """What a node in that place needs to mount the file system.

        Raises:
            LaunchPending: It is being created.
        """
        name, system = str(volume["name"]), str(volume["id"])
        targets = self._targets(system)
        target = next((t for t in targets if t.get("AvailabilityZoneName") == place.zone), None)
        if target is None:
            self._check_network(name, targets, place)
            self._make_target(name, system, place)
            raise LaunchPending(
                f"volume {name!r} is being made reachable from {place.zone}", _RETRY
            )
        if target["LifeCycleState"] in ("creating", "updating"):
            raise LaunchPending(
                f"volume {name!r} is being made reachable from {place.zone}", _RETRY
            )
        if target["LifeCycleState"] != "available":
            raise ProviderError(
                f"volume {name!r}: the mount target {target['MountTargetId']} of {system} in {place.zone} is "
                f"{target['LifeCycleState']}"
            )
        self._check_network(name, [target], place)
        self._check_way(name, target, place)
        return {"share": "nfs", "address": target["IpAddress"], "export": "/", "options": OPTIONS}

    def all(self) -> list[VolumeInfo]:
        """The file systems that flowlite created."""
        ours = [each for each in self._systems() if VOLUME_TAG in of_tags(each)]
        price = self._prices(FILES) if ours else None
        found = []
        for system in ours:
            used = int(system.get("SizeInBytes", {}).get("Value", 0))
            month = round(price * used / GB, 6) if price is not None else None
            created = system["CreationTime"].timestamp()
            found.append(
                VolumeInfo(
                    name=of_tags(system)[VOLUME_TAG],
                    provider="aws",
                    interface="file",
                    size_gb=None,
                    location=system["FileSystemId"],
                    used_bytes=used,
                    region=self._region,
                    price_per_month=month,
                    created_at=created,
                    by_use=True,
                    cost_so_far=self._cost(system["FileSystemId"], created, price),
                )
            )
        return found

    def delete(self, system: str) -> None:
        """Deletes a file system, its mount targets first."""
        for target in self._targets(system):
            if target["LifeCycleState"] not in _GOING:
                # A call whose answer is lost is repeated by boto3, and has been obeyed then.
                with suppress(Answered):
                    name = target["MountTargetId"]
                    self._efs.call("DeleteMountTarget", "MountTargetNotFound", MountTargetId=name)
        for _ in range(_TRIES):
            try:
                self._efs.call("DeleteFileSystem", *_STILL, FileSystemId=system)
                return
            except Answered as answer:
                if answer.code == "FileSystemNotFound":
                    return
            self._pause(_RETRY)
        raise ProviderError(
            f"{system} is not deleted: its mount targets are still going. Run the command again in a few minutes"
        )

    # Helpers

    def _cost(self, system: str, created: float, price: float | None) -> float | None:
        """US dollars for what was stored until now; None if that is not known."""
        if price is None:
            return None
        stored = byte_seconds(self._metrics, system, created, clock.wall())
        return None if stored is None else price * stored / GB / (HOURS_PER_MONTH * 3600)

    def _systems(self) -> list[dict[str, Any]]:
        found = self._efs.all("DescribeFileSystems", "FileSystems")
        return [each for each in found if each.get("LifeCycleState") not in _GOING]

    def _is_going(self, system: str) -> bool:
        found = self._efs.all("DescribeFileSystems", "FileSystems")
        return any(s["FileSystemId"] == system and s.get("LifeCycleState") in _GOING for s in found)

    def _named(self, name: str) -> Mapping[str, Any] | None:
        systems = self._systems()
        found = named(systems, name) or [s for s in systems if s["FileSystemId"] == name]
        if len(found) > 1:
            ids = ", ".join(str(each["FileSystemId"]) for each in found)
            raise ConfigError(
                f"volumes: {name!r} is the name of several file systems of EFS in {self._region}: {ids}; use the id "
                "of one in its place"
            )
        return found[0] if found else None

    def _targets(self, system: str) -> list[dict[str, Any]]:
        found = self._efs.all("DescribeMountTargets", "MountTargets", FileSystemId=system)
        return [each for each in found if each.get("LifeCycleState") not in _GOING]

    def _check_network(
        self, name: str, targets: list[dict[str, Any]], place: LaunchLocation
    ) -> None:
        others = {vpc for each in targets if (vpc := each.get("VpcId")) and vpc != place.vpc}
        if others:
            raise ProviderError(
                f"volume {name!r} has its mount targets in the network {', '.join(sorted(others))}, and the launch is "
                f"in {place.vpc}; a file system of EFS belongs to one network. Set subnet under [aws] to one of that "
                "network"
            )

    def _make_target(self, name: str, system: str, place: LaunchLocation) -> None:
        try:
            self._efs.call(
                "CreateMountTarget",
                # Another launch is creating it, or the file system itself is not ready, or a new group is not known
                # everywhere: the next check will show.
                *("MountTargetConflict", "IncorrectFileSystemLifeCycleState"),
                "SecurityGroupNotFound",
                FileSystemId=system,
                SubnetId=place.subnet,
                SecurityGroups=[place.group],
            )
        except Answered as answer:
            raise LaunchPending(f"volume {name!r} is being made", _RETRY) from answer

    def _check_way(self, name: str, target: Mapping[str, Any], place: LaunchLocation) -> None:
        """Checks that a mount target not made by flowlite lets the instances in. Other groups are never changed."""
        of = self._efs.call(
            "DescribeMountTargetSecurityGroups", MountTargetId=target["MountTargetId"]
        )
        ids = [str(each) for each in of["SecurityGroups"]]
        if place.group in ids:
            return
        groups = self._ec2.call("DescribeSecurityGroups", GroupIds=ids)["SecurityGroups"]
        if not any(_lets_in(group, place.group) for group in groups):
            raise ProviderError(
                f"volume {name!r}: the security groups of its mount target {target['MountTargetId']} "
                f"({', '.join(ids)}) do not let in TCP {PORT} from {place.group} ({GROUP_NAME}), which the instances "
                "have; add that rule"
            )


def group_of(ec2: Service, vpc: str) -> str:
    """The security group through which instances of a VPC reach mount targets; creates it if missing."""
    group = _find_group(ec2, vpc)
    if group is None:
        with suppress(Answered):
            tags = as_tags({"Name": GROUP_NAME, "flowlite:kind": "volumes"})
            ec2.call(
                "CreateSecurityGroup",
                "InvalidGroup.Duplicate",
                GroupName=GROUP_NAME,
                Description="flowlite: NFS between instances and volumes",
                VpcId=vpc,
                TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
            )
        group = _find_group(ec2, vpc)
    if group is None:
        raise LaunchPending(_MAKING_GROUP, _RETRY)
    name = str(group["GroupId"])
    if not _lets_in(group, name):
        pair = {"GroupId": name, "Description": "flowlite"}
        try:
            ec2.call(
                "AuthorizeSecurityGroupIngress",
                *("InvalidPermission.Duplicate", "InvalidGroup.NotFound"),
                GroupId=name,
                IpPermissions=[
                    {
                        "IpProtocol": "tcp",
                        "FromPort": PORT,
                        "ToPort": PORT,
                        "UserIdGroupPairs": [pair],
                    }
                ],
            )
        except Answered as answer:
            # A new group is not known everywhere.
            if answer.code == "InvalidGroup.NotFound":
                raise LaunchPending(_MAKING_GROUP, _RETRY) from answer
    return name


def _find_group(ec2: Service, vpc: str) -> Mapping[str, Any] | None:
    asked = {"group-name": GROUP_NAME, "vpc-id": vpc}
    filters = [{"Name": key, "Values": [value]} for key, value in asked.items()]
    found: list[dict[str, Any]] = ec2.call("DescribeSecurityGroups", Filters=filters)[
        "SecurityGroups"
    ]
    return found[0] if found else None


def _creation_token(name: str) -> str:
    token = f"flowlite-{name}"
    return token if len(token) <= _LONGEST_TOKEN else hashlib.sha256(token.encode()).hexdigest()


def _lets_in(group: Mapping[str, Any], instances: str) -> bool:
    """Whether a group allows NFS from another group, or from any address range."""
    for rule in group.get("IpPermissions") or ():
        every = rule.get("IpProtocol") == "-1"
        if not every and not rule.get("FromPort", -1) <= PORT <= rule.get("ToPort", -1):
            continue
        if any(pair.get("GroupId") == instances for pair in rule.get("UserIdGroupPairs") or ()):
            return True
        # The addresses of the instances are not compared: a range that was entered by hand counts as intended.
        if rule.get("IpRanges") or rule.get("PrefixListIds"):
            return True
    return False
