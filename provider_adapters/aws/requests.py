"""The parameters of requests to EC2, made by pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from flowlite.node.quick_dataclass import dataclass

# Tagged in the call that creates the machines: a crash before a later call would leave them without tags.
_TAGGED = ("instance", "volume", "network-interface")
ALL_TRAFFIC = "-1"
ALIVE = ("pending", "running", "stopping", "stopped", "shutting-down")
"""The states of EC2's instances that exist."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One gang, or a part of it, in one zone.

    Attributes:
        count: The most machines that it creates.
        least: With how many it is content.
        disks: The names of the devices of the image's other disks.
        cards: If EFA is wanted, for each network card the kinds of interface it accepts; () for none.
        max_price: On spot, the maximum price per instance and hour in the currency of the region; None for no limit of
            ours.
        market: "on-demand", "spot" or "capacity-block".
        placement_group: Name of a cluster placement group, or "".
        reservation: Id of a capacity reservation or block, or "".
    """

    instance_type: str
    count: int
    least: int
    image: str
    root_device: str
    root_gb: int
    zone: str
    subnet: str
    groups: tuple[str, ...]
    user_data: str
    tags: Mapping[str, str]
    disks: tuple[str, ...] = ()
    cards: tuple[tuple[str, ...], ...] = ()
    public_ip: bool = True
    market: str = "on-demand"
    max_price: float | None = None
    placement_group: str = ""
    reservation: str = ""
    instance_profile: str = ""
    name: str = field(default="flowlite")


def run_instances(order: LaunchRequest) -> dict[str, Any]:
    """RunInstances for an order; without its ClientToken."""
    request: dict[str, Any] = {
        "ImageId": order.image,
        "InstanceType": order.instance_type,
        "MinCount": order.least,
        "MaxCount": order.count,
        "Placement": _placement(order),
        "NetworkInterfaces": interfaces(order),
        "BlockDeviceMappings": [
            {
                "DeviceName": order.root_device,
                "Ebs": {
                    "VolumeSize": order.root_gb,
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                },
            },
            # An image may say of its other disks that they stay, and are charged, when the machine is gone.
            *({"DeviceName": each, "Ebs": {"DeleteOnTermination": True}} for each in order.disks),
        ],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            # Containers are one hop further away.
            "HttpPutResponseHopLimit": 2,
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": order.user_data,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": as_tags({"Name": order.name, **order.tags})}
            for kind in (*_TAGGED, *(("spot-instances-request",) if order.market == "spot" else ()))
        ],
    }
    if order.market == "spot":
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": _spot(order)}
    if order.market == "capacity-block":
        request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if order.reservation:
        target = {"CapacityReservationId": order.reservation}
        request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    if order.instance_profile:
        kind = "Arn" if order.instance_profile.startswith("arn:") else "Name"
        request["IamInstanceProfile"] = {kind: order.instance_profile}
    return request


def interfaces(order: LaunchRequest) -> list[dict[str, Any]]:
    """The network interfaces of each machine: one, or the EFA interfaces in addition to it."""
    layout = efa_layout(order.cards)
    requested = []
    for card, device, kind in layout:
        each: dict[str, Any] = {
            "DeviceIndex": device,
            "SubnetId": order.subnet,
            "Groups": list(order.groups),
            "DeleteOnTermination": True,
        }
        if len(layout) == 1:
            # With several interfaces, EC2 assigns no public address.
            each["AssociatePublicIpAddress"] = order.public_ip
        else:
            each["NetworkCardIndex"] = card
        if kind != "interface":
            each["InterfaceType"] = kind
        requested.append(each)
    return requested


def efa_layout(cards: Sequence[Sequence[str]]) -> list[tuple[int, int, str]]:
    """The interfaces of a machine as (network card index, device index, kind), the primary interface first.

    The rules are those of "Maximize network bandwidth on Amazon EC2 instances with multiple network cards" in the EC2
    user guide. A machine with one card has one interface that carries both IP and EFA, so that it can have a public
    address. A machine with several cards has a plain primary interface and, on each card that accepts EFA, an EFA-only
    interface: device index 1 on the card of the primary interface, 0 on all others. An EFA-only interface needs no IP
    address.

    Args:
        cards: For each network card the kinds of interface it accepts; () if EFA is not wanted.
    """
    if len(cards) <= 1:
        return [(0, 0, "efa" if cards and "efa" in cards[0] else "interface")]
    layout = [(0, 0, "interface")]
    layout += [
        (card, 1 if card == 0 else 0, "efa-only")
        for card, takes in enumerate(cards)
        if "efa-only" in takes
    ]
    return layout


def _placement(order: LaunchRequest) -> dict[str, str]:
    group = {"GroupName": order.placement_group} if order.placement_group else {}
    return {"AvailabilityZone": order.zone, **group}


def _spot(order: LaunchRequest) -> dict[str, str]:
    price = {} if order.max_price is None else {"MaxPrice": money(order.max_price)}
    return {
        "SpotInstanceType": "one-time",
        "InstanceInterruptionBehavior": "terminate",
        **price,
    }


def money(dollars: float) -> str:
    """A price in EC2's format, rounded down."""
    return f"{int(dollars * 10_000 + 1e-6) / 10_000:.4f}".rstrip("0").rstrip(".")


# Security groups


def security_group(name: str, vpc: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """CreateSecurityGroup for one task."""
    return {
        "GroupName": name,
        "Description": "flowlite: the nodes of one task, and who may log in to them",
        "VpcId": vpc,
        "TagSpecifications": [
            {"ResourceType": "security-group", "Tags": as_tags({"Name": name, **tags})}
        ],
    }


def ingress(group: str, networks: Sequence[str]) -> dict[str, Any]:
    """AuthorizeSecurityGroupIngress: all traffic between the nodes, and SSH from these networks."""
    return {"GroupId": group, "IpPermissions": [among(group), *ssh(networks)]}


def egress(group: str) -> dict[str, Any]:
    """AuthorizeSecurityGroupEgress: to the nodes themselves, which EFA needs besides the rule for all addresses."""
    return {"GroupId": group, "IpPermissions": [among(group)]}


def among(group: str) -> dict[str, Any]:
    """All traffic within a group."""
    return {"IpProtocol": ALL_TRAFFIC, "UserIdGroupPairs": [{"GroupId": group}]}


def ssh(networks: Sequence[str]) -> list[dict[str, Any]]:
    """SSH from some networks."""
    old = [{"CidrIp": each, "Description": "flowlite"} for each in networks if ":" not in each]
    new = [{"CidrIpv6": each, "Description": "flowlite"} for each in networks if ":" in each]
    port = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    return [
        *([{**port, "IpRanges": old}] if old else []),
        *([{**port, "Ipv6Ranges": new}] if new else []),
    ]


def placement_group(name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """CreatePlacementGroup: machines close together."""
    return {
        "GroupName": name,
        "Strategy": "cluster",
        "TagSpecifications": [{"ResourceType": "placement-group", "Tags": as_tags(tags)}],
    }


# Listing and ending


def describe(**filters: Sequence[str] | str) -> dict[str, Any]:
    """DescribeInstances by filters: `tag__flowlite__home` stands for `tag:flowlite:home`, `_` for `-`."""
    return {
        "Filters": [
            {
                "Name": name.replace("__", ":").replace("_", "-"),
                "Values": [values] if isinstance(values, str) else list(values),
            }
            for name, values in filters.items()
        ]
    }


def as_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in the format of requests to AWS."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def of_tags(listed: Mapping[str, Any]) -> dict[str, str]:
    """The tags in an entry of AWS's listings."""
    return {tag["Key"]: tag["Value"] for tag in listed.get("Tags") or ()}
