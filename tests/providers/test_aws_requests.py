"""What is sent to EC2, byte for byte: the files in `aws_golden` are the requests of typical launches.

Write them anew with `WRITE_GOLDEN=1 pytest tests/providers/test_aws_requests.py`, and read the difference.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from provider_adapters.aws import requests
from provider_adapters.aws.catalog.instance_types import Machine
from provider_adapters.aws.requests import LaunchRequest

GOLDEN = Path(__file__).parent / "aws_golden"
TAGS = {
    "flowlite:task": "t1",
    "flowlite:home": "0123456789abcdef",
    "flowlite:owner": "ada@laptop",
    "flowlite:token": "t1-launch-1",
    "flowlite:deadline": "1795290000",
    "flowlite:price": "55.04",
}
PLAIN = LaunchRequest(
    instance_type="c7i.large",
    count=2,
    least=2,
    image="ami-0123456789abcdef0",
    root_device="/dev/sda1",
    root_gb=100,
    zone="us-east-1a",
    subnet="subnet-0a",
    groups=("sg-0a",),
    user_data="#!/bin/sh\n",
    tags=TAGS,
    name="flowlite train",
)
# Network interfaces of a machine where EFA is asked for: all of them, those for EFA alone, and the kind of the primary
# one. By "Maximize network bandwidth on Amazon EC2 instances with multiple network cards" in the EC2 user guide.
EFA_BY_TYPE = {
    "p4d.24xlarge": (5, 4, "interface"),
    "p4de.24xlarge": (5, 4, "interface"),
    "p5.4xlarge": (1, 0, "efa"),
    "p5.48xlarge": (33, 32, "interface"),
    "p5e.48xlarge": (33, 32, "interface"),
    "p5en.48xlarge": (17, 16, "interface"),
    "p6-b200.48xlarge": (9, 8, "interface"),
    # The first card takes no EFA.
    "p6-b300.48xlarge": (17, 16, "interface"),
    "g5.48xlarge": (1, 0, "efa"),
    "g6.48xlarge": (1, 0, "efa"),
    "g6e.24xlarge": (3, 2, "interface"),
    "g6e.48xlarge": (5, 4, "interface"),
    "c5n.18xlarge": (1, 0, "efa"),
    "hpc7a.96xlarge": (3, 2, "interface"),
    "c7i.large": (1, 0, "interface"),
}
ORDERS = {
    "on_demand": PLAIN,
    "spot": dataclasses.replace(PLAIN, market="spot", max_price=2.5),
    "efa": dataclasses.replace(
        PLAIN,
        instance_type="p4d.24xlarge",
        count=4,
        least=4,
        cards=(("interface", "efa", "efa-only"),) * 4,
        public_ip=False,
        placement_group="flowlite-t1",
        groups=("sg-0a", "sg-0b"),
    ),
    "capacity_block": dataclasses.replace(
        PLAIN,
        instance_type="p5.48xlarge",
        market="capacity-block",
        reservation="cr-0a",
        instance_profile="arn:aws:iam::123456789012:instance-profile/train",
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_launch_is_this_request(name: str) -> None:
    request = requests.run_instances(ORDERS[name])
    path = GOLDEN / f"{name}.json"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(json.dumps(request, indent=1) + "\n")
    assert request == json.loads(path.read_text())


@pytest.mark.parametrize("name", ORDERS)
def test_what_every_launch_has(name: str) -> None:
    request = requests.run_instances(ORDERS[name])
    assert request["MinCount"] == request["MaxCount"] == ORDERS[name].count
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert "KeyName" not in request
    assert "ClientToken" not in request
    tagged = {each["ResourceType"]: each["Tags"] for each in request["TagSpecifications"]}
    assert {"instance", "volume", "network-interface"} <= set(tagged)
    for tags in tagged.values():
        assert TAGS.items() <= {tag["Key"]: tag["Value"] for tag in tags}.items()
    assert all(each["DeleteOnTermination"] for each in request["NetworkInterfaces"])
    assert all(each["Ebs"]["DeleteOnTermination"] for each in request["BlockDeviceMappings"])


@pytest.mark.parametrize("name", ORDERS)
def test_boto_takes_it(name: str) -> None:
    """The names and types are those of boto's own model of the API."""
    import botocore.session
    from botocore.validate import ParamValidator

    model = botocore.session.get_session().get_service_model("ec2")
    shape = model.operation_model("RunInstances").input_shape
    report = ParamValidator().validate(requests.run_instances(ORDERS[name]), shape)
    assert not report.has_errors(), report.generate_report()


def test_a_spot_request_bears_the_tags_and_the_cap() -> None:
    request = requests.run_instances(ORDERS["spot"])
    assert "spot-instances-request" in [e["ResourceType"] for e in request["TagSpecifications"]]
    options = request["InstanceMarketOptions"]["SpotOptions"]
    assert options == {
        "SpotInstanceType": "one-time",
        "InstanceInterruptionBehavior": "terminate",
        "MaxPrice": "2.5",
    }


def test_the_cap_is_never_rounded_up() -> None:
    assert requests.money(0.12345678) == "0.1234"
    assert requests.money(50.0) == "50"
    assert requests.money(55.04) == "55.04"


def told_by_ec2(name: str, *, by_an_old_botocore: bool) -> dict[str, Any]:
    """An entry of DescribeInstanceTypes, as recorded from EC2 by moto; old versions of botocore drop a member of it."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    told: dict[str, Any] = copy.deepcopy(INSTANCE_TYPES[name])
    if by_an_old_botocore:
        for card in told["NetworkInfo"]["NetworkCards"]:
            del card["InterfaceTypes"]
    return told


@pytest.mark.parametrize("by_an_old_botocore", [False, True])
@pytest.mark.parametrize("name", EFA_BY_TYPE)
def test_efa_by_type(name: str, by_an_old_botocore: bool) -> None:
    told = told_by_ec2(name, by_an_old_botocore=by_an_old_botocore)
    machine = Machine.from_api(told)
    interfaces = requests.interfaces(dataclasses.replace(PLAIN, cards=machine.cards))
    primary, *others = interfaces
    kinds = [each.get("InterfaceType", "interface") for each in interfaces]
    assert (len(kinds), kinds.count("efa-only"), kinds[0]) == EFA_BY_TYPE[name]
    assert kinds.count("efa-only") + kinds.count("efa") == machine.efa

    # EC2 takes no index beyond what a card has, and no two interfaces in one place.
    slots = {
        card["NetworkCardIndex"]: card["MaximumNetworkInterfaces"]
        for card in told["NetworkInfo"]["NetworkCards"]
    }
    places = [(each.get("NetworkCardIndex", 0), each["DeviceIndex"]) for each in interfaces]
    assert len(set(places)) == len(places)
    assert all(device < slots[card] for card, device in places)
    assert (primary.get("NetworkCardIndex", 0), primary["DeviceIndex"]) == (0, 0)
    # With several interfaces EC2 gives no public address.
    assert ("AssociatePublicIpAddress" in primary) == (not others)


def test_cards_that_nobody_knows_are_not_guessed() -> None:
    told = told_by_ec2("p5.48xlarge", by_an_old_botocore=True)
    told["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] = 7
    assert Machine.from_api(told).cards == ()


def test_one_card_with_efa_keeps_its_public_address() -> None:
    (only,) = requests.interfaces(dataclasses.replace(PLAIN, cards=(("interface", "efa"),)))
    assert only["InterfaceType"] == "efa"
    assert only["AssociatePublicIpAddress"] is True


def test_the_group_lets_in_its_own_and_the_caller_only() -> None:
    asked: dict[str, Any] = requests.ingress("sg-0a", ["203.0.113.7/32", "2001:db8::7/128"])
    own, old, new = asked["IpPermissions"]
    assert own == {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-0a"}]}
    assert [each["CidrIp"] for each in old["IpRanges"]] == ["203.0.113.7/32"]
    assert [each["CidrIpv6"] for each in new["Ipv6Ranges"]] == ["2001:db8::7/128"]
    assert (old["FromPort"], old["ToPort"], new["FromPort"], new["ToPort"]) == (22, 22, 22, 22)
    assert requests.egress("sg-0a")["IpPermissions"] == [own]


def test_filters_are_named_as_ec2_names_them() -> None:
    assert requests.describe(tag__flowlite__home="h", instance_state_name=("running",)) == {
        "Filters": [
            {"Name": "tag:flowlite:home", "Values": ["h"]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
    }
