"""The minimal IAM policy for the adapter, as JSON, and the calls that it allows."""

from __future__ import annotations

import json
from typing import Any

_TAG = "aws:RequestTag/flowlite:home"
_OURS = "aws:ResourceTag/flowlite:home"
_VOLUME = "flowlite:volume"

# Read actions do not support resource restrictions.
READS = (
    "ec2:DescribeRegions",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeRouteTables",
    "ec2:DescribeVpcs",
    "ec2:DescribeImages",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeVolumes",
    "pricing:GetProducts",
    "servicequotas:GetServiceQuota",
    "sts:GetCallerIdentity",
)
VOLUME_READS = (
    "elasticfilesystem:DescribeFileSystems",
    "elasticfilesystem:DescribeMountTargets",
    "elasticfilesystem:DescribeMountTargetSecurityGroups",
    "fsx:DescribeFileSystems",
    "ec2:DescribeNetworkInterfaces",
    "cloudwatch:GetMetricStatistics",
)
# Allowed for what has our tag only.
ON_OURS = (
    "ec2:TerminateInstances",
    "ec2:GetConsoleOutput",
    "ec2:CancelSpotInstanceRequests",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:AuthorizeSecurityGroupEgress",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:DeleteSecurityGroup",
    "ec2:DeletePlacementGroup",
)
_MADE = ("instance", "volume", "network-interface", "spot-instances-request")
_USED = (
    "image",
    "snapshot",
    "subnet",
    "security-group",
    "placement-group",
    "capacity-reservation",
)


def policy(*, partition: str = "aws") -> dict[str, Any]:
    """The policy. New resources must have our tag in the same call, and only tagged ones can be ended.

    Args:
        partition: That of the regions, "aws-cn" or "aws-us-gov": IAM takes no resources of another one.
    """
    statements = [
        _allow("Look", READS, "*"),
        _allow(
            "FindImages",
            ("ssm:GetParameter",),
            ["arn:aws:ssm:*::parameter/aws/service/*"],
        ),
        _allow(
            "LaunchWithOurTag",
            ("ec2:RunInstances",),
            [_ec2(kind) for kind in _MADE],
            {"StringLike": {_TAG: "*"}},
        ),
        _allow("LaunchFrom", ("ec2:RunInstances",), [_ec2(kind) for kind in _USED]),
        _allow(
            "TagWhatIsMade",
            ("ec2:CreateTags",),
            [_ec2("*")],
            {
                "StringEquals": {
                    "ec2:CreateAction": [
                        "RunInstances",
                        "CreateSecurityGroup",
                        "CreatePlacementGroup",
                        "CreateVolume",
                    ]
                }
            },
        ),
        _allow(
            "EndOurs",
            ON_OURS,
            [_ec2("*")],
            {"StringLike": {_OURS: "*"}},
        ),
        _allow(
            "MakeGroups",
            ("ec2:CreateSecurityGroup", "ec2:CreatePlacementGroup"),
            [_ec2("security-group"), _ec2("placement-group")],
            {"StringLike": {_TAG: "*"}},
        ),
        _allow("MakeGroupsIn", ("ec2:CreateSecurityGroup",), [_ec2("vpc")]),
        _allow(
            "SpotRole",
            ("iam:CreateServiceLinkedRole",),
            ["arn:aws:iam::*:role/aws-service-role/spot.amazonaws.com/*"],
            {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
        ),
    ]
    found = {"Version": "2012-10-17", "Statement": [*statements, *_of_volumes()]}
    text = json.dumps(found).replace('"arn:aws:', f'"arn:{partition}:')
    return dict(json.loads(text))


def _of_volumes() -> list[dict[str, Any]]:
    tagged = {"Null": {f"aws:RequestTag/{_VOLUME}": "false"}}
    ours = {"Null": {f"aws:ResourceTag/{_VOLUME}": "false"}}
    group = {"StringEquals": {"aws:ResourceTag/flowlite:kind": "volumes"}}
    return [
        _allow("LookAtVolumes", VOLUME_READS, "*"),
        _allow(
            "MakeFileSystems",
            ("elasticfilesystem:CreateFileSystem", "elasticfilesystem:TagResource"),
            "*",
            tagged,
        ),
        _allow(
            "UseFileSystems",
            (
                "elasticfilesystem:CreateMountTarget",
                "elasticfilesystem:DeleteMountTarget",
                "elasticfilesystem:DeleteFileSystem",
            ),
            "*",
            ours,
        ),
        _allow(
            "MountIn",
            ("ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface"),
            [_ec2("*")],
        ),
        _allow("MakeDisks", ("ec2:CreateVolume",), [_ec2("volume")], tagged),
        _allow("UseDisks", ("ec2:AttachVolume", "ec2:DeleteVolume"), [_ec2("volume")], ours),
        _allow(
            "AttachToOurs",
            ("ec2:AttachVolume",),
            [_ec2("instance")],
            {"StringLike": {_OURS: "*"}},
        ),
        _allow(
            "MakeTheGroupOfVolumes",
            ("ec2:CreateSecurityGroup",),
            [_ec2("security-group")],
            {"StringEquals": {"aws:RequestTag/flowlite:kind": "volumes"}},
        ),
        _allow(
            "OpenTheGroupOfVolumes",
            ("ec2:AuthorizeSecurityGroupIngress",),
            [_ec2("security-group")],
            group,
        ),
    ]


def _ec2(kind: str) -> str:
    # Amazon's own images and snapshots have no account, which `*` matches, too.
    return f"arn:aws:ec2:*:*:{kind}/*"


def _allow(
    sid: str,
    actions: tuple[str, ...],
    resources: str | list[str],
    condition: dict[str, Any] | None = None,
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": resources,
    }
    return statement | ({"Condition": condition} if condition else {})
