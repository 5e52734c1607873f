"""The box's EC2 under a policy, as IAM would hold a client to it."""

from __future__ import annotations

from typing import Any

import pytest

from flowlite.testing.cloud import CloudInABox
from tests.testing_cloud.ec2_client import client, in_state, launch, refused

# These test the box itself, through a client that repeats nothing.
pytestmark = [pytest.mark.needs("hosts"), pytest.mark.no_random_faults]
OURS = {"flowlite:home": "h1"}
MADE = ["instance", "volume", "network-interface"]


def tagged(kinds: list[str], tags: dict[str, str]) -> list[dict[str, Any]]:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **s} for s in statements]}


READ = {"Action": ["ec2:Describe*", "ec2:GetConsoleOutput"], "Resource": "*"}
LAUNCH = {
    "Action": "ec2:RunInstances",
    "Resource": [f"arn:aws:ec2:*:*:{kind}/*" for kind in MADE],
    "Condition": {"StringLike": {"aws:RequestTag/flowlite:home": "*"}},
}
USE = {
    "Action": "ec2:RunInstances",
    "Resource": [f"arn:aws:ec2:*:*:{kind}/*" for kind in ("image", "subnet", "security-group")],
}
TAG = {
    "Action": "ec2:CreateTags",
    "Resource": "*",
    "Condition": {"StringEquals": {"ec2:CreateAction": ["RunInstances"]}},
}
END = {
    "Action": "ec2:TerminateInstances",
    "Resource": "arn:aws:ec2:*:*:instance/*",
    "Condition": {"StringEquals": {"aws:ResourceTag/flowlite:home": "h1"}},
}


def test_a_least_policy_suffices(box: CloudInABox, ec2: Any) -> None:
    box.aws.policy(policy(READ, LAUNCH, USE, TAG, END))
    (id,) = launch(ec2, TagSpecifications=tagged(MADE, OURS))
    in_state(ec2, id, "running")
    ec2.terminate_instances(InstanceIds=[id])
    in_state(ec2, id, "terminated")


@pytest.mark.parametrize(
    ("left_out", "action"),
    [("LAUNCH", "ec2:RunInstances"), ("USE", "ec2:RunInstances"), ("TAG", "ec2:CreateTags")],
)
def test_what_is_missing_is_named(box: CloudInABox, ec2: Any, left_out: str, action: str) -> None:
    statements = {"READ": READ, "LAUNCH": LAUNCH, "USE": USE, "TAG": TAG}
    del statements[left_out]
    box.aws.policy(policy(*statements.values()))
    with refused("UnauthorizedOperation") as raised:
        launch(ec2, TagSpecifications=tagged(MADE, OURS), SecurityGroupIds=[group(ec2)])
    assert f"not authorized to perform: {action} on resource" in str(raised.value)
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert box.aws.instances() == []


def group(ec2: Any) -> str:
    return str(ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"])


def test_conditions_on_tags_hold(box: CloudInABox, ec2: Any) -> None:
    (ours,) = launch(ec2, TagSpecifications=tagged(MADE, OURS))
    (others,) = launch(ec2, TagSpecifications=tagged(MADE, {"flowlite:home": "h2"}))
    box.aws.policy(policy(READ, LAUNCH, USE, TAG, END))
    with refused("UnauthorizedOperation"):
        ec2.terminate_instances(InstanceIds=[others])
    with refused("UnauthorizedOperation"):
        launch(ec2)
    ec2.terminate_instances(InstanceIds=[ours])


def test_other_services_are_held_to_it_too(box: CloudInABox) -> None:
    box.aws.policy(policy(READ))
    with refused("AccessDeniedException"):
        client("pricing").get_products(ServiceCode="AmazonEC2")
    box.aws.policy(policy({"Action": "pricing:GetProducts", "Resource": "*"}))
    client("pricing").get_products(ServiceCode="AmazonEC2")


def test_a_denial_wins(box: CloudInABox, ec2: Any) -> None:
    everything = {"Action": "*", "Resource": "*"}
    denial = {"Effect": "Deny", "Action": "ec2:TerminateInstances", "Resource": "*"}
    box.aws.policy(policy(everything, denial))
    (id,) = launch(ec2)
    with refused("UnauthorizedOperation"):
        ec2.terminate_instances(InstanceIds=[id])
    box.aws.policy(None)
    ec2.terminate_instances(InstanceIds=[id])
