"""The permissions that a call requires: its action on each resource that it creates or uses, with tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from moto.ec2.models import ec2_backends

from flowlite.testing.cloud.ec2.names import ACCOUNT
from flowlite.testing.cloud.ec2.permissions.policy import Need

# The resource kinds, by the parameter that holds their ids.
_NAMED = {
    "InstanceId": "instance",
    "SecurityGroupId": "security-group",
    "GroupId": "security-group",
    "SubnetId": "subnet",
    "VolumeId": "volume",
    "VpcId": "vpc",
    "SpotInstanceRequestId": "spot-instances-request",
    "AllocationId": "elastic-ip",
    "NetworkInterfaceId": "network-interface",
    "ImageId": "image",
    "ResourceId": "",
}
_BY_PREFIX = {
    "i": "instance",
    "sg": "security-group",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
    "sir": "spot-instances-request",
    "eni": "network-interface",
    "eipalloc": "elastic-ip",
    "ami": "image",
}
# The resource kinds that calls create.
_MADE = {
    "RunInstances": ("instance", "volume", "network-interface"),
    "CreateSecurityGroup": ("security-group",),
    "CreateVolume": ("volume",),
    "CreatePlacementGroup": ("placement-group",),
    "AllocateAddress": ("elastic-ip",),
    "CreateNetworkInterface": ("network-interface",),
}
_TAG = re.compile(r"(TagSpecification\.(\d+)\.)?Tag\.\d+\.Key")


def needs_of(action: str, parameters: dict[str, Any]) -> Iterator[Need]:
    """The permissions that a call of any service requires."""
    region = str(parameters.get("Region", ""))
    if ":" in action:
        # AWS's own image parameters have no account in their ARN.
        name = parameters.get("Name") if action == "ssm:GetParameter" else None
        resource = f"arn:aws:ssm:{region}::parameter{name}" if name else "*"
        yield Need(action, resource, {"aws:RequestedRegion": region})
        return
    name = f"ec2:{action}"
    if action.startswith(("Describe", "Get")):
        yield Need(name, "*", {"aws:RequestedRegion": region})
        return
    tags = _requested_tags(parameters)
    for kind in _made(action, parameters):
        context = _context(region, tags.get(kind, {}), "aws:RequestTag")
        yield Need(name, _arn(region, kind, "*new*"), context)
        if tags.get(kind):
            # Tagging on creation requires a permission of its own.
            yield Need(
                "ec2:CreateTags",
                _arn(region, kind, "*new*"),
                {**context, "ec2:CreateAction": action},
            )
    for kind, id in _named(parameters):
        own = _tags_of(region, id)
        context = _context(region, own, "aws:ResourceTag") | _context(
            region, own, "ec2:ResourceTag"
        )
        if action in ("CreateTags", "DeleteTags"):
            context |= _context(region, tags.get("", {}), "aws:RequestTag")
        yield Need(name, _arn(region, kind, id), context)
    profile = parameters.get("IamInstanceProfile.Name") or parameters.get("IamInstanceProfile.Arn")
    if action == "RunInstances" and profile:
        yield Need("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{profile.rpartition('/')[2]}")


def _made(action: str, parameters: dict[str, Any]) -> list[str]:
    made = list(_MADE.get(action, ()))
    if action == "RunInstances" and parameters.get("InstanceMarketOptions.MarketType") == "spot":
        made.append("spot-instances-request")
    return made


def _named(parameters: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in parameters.items():
        words = [word for word in key.split(".") if not word.isdigit()]
        kind = _NAMED.get(words[-1]) if words and words[0] != "Filter" else None
        if kind is not None and isinstance(value, str):
            yield kind or _BY_PREFIX.get(value.partition("-")[0], "*"), value
    group = parameters.get("Placement.GroupName") or parameters.get("GroupName")
    if group and "Strategy" not in parameters and "GroupDescription" not in parameters:
        yield "placement-group", str(group)
    if pair := parameters.get("KeyName"):
        yield "key-pair", str(pair)


def _requested_tags(parameters: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The requested tags by resource kind. Those of CreateTags are under ""."""
    found: dict[str, dict[str, str]] = {}
    for key, value in parameters.items():
        if match := _TAG.fullmatch(key):
            kind = (
                parameters.get(f"TagSpecification.{match[2]}.ResourceType", "") if match[1] else ""
            )
            words = key.removesuffix("Key") + "Value"
            found.setdefault(str(kind), {})[str(value)] = str(parameters.get(words, ""))
    return found


def _context(region: str, tags: dict[str, str], prefix: str) -> dict[str, str | list[str]]:
    context: dict[str, str | list[str]] = {"aws:RequestedRegion": region}
    context |= {f"{prefix}/{key}": value for key, value in tags.items()}
    if prefix == "aws:RequestTag" and tags:
        context["aws:TagKeys"] = list(tags)
    return context


def _tags_of(region: str, id: str) -> dict[str, str]:
    if not region:
        return {}
    found = ec2_backends[ACCOUNT][region].tags.get(id, {})
    return {str(key): str(value) for key, value in found.items()}


def _arn(region: str, kind: str, id: str) -> str:
    owner = "" if kind == "image" else ACCOUNT
    return f"arn:aws:ec2:{region}:{owner}:{kind}/{id.replace('*new*', 'new')}"
