"""What is sent to EC2, byte for byte: the files in `aws_golden` are the requests of typical launches.

Write them anew with `WRITE_GOLDEN=1 pytest tests/providers/test_aws_requests.py`, and read the difference.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from provider_adapters.aws import requests
from provider_adapters.aws.requests import Order

GOLDEN = Path(__file__).parent / "aws_golden"
TAGS = {
    "flowlite:task": "t1",
    "flowlite:home": "0123456789abcdef",
    "flowlite:owner": "ada@laptop",
    "flowlite:token": "t1-launch-1",
    "flowlite:deadline": "1795290000",
    "flowlite:price": "55.04",
}
PLAIN = Order(
    instance_type="c7i.large",
    count=2,
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
P5 = (("interface", "efa", "efa-only"), *((("efa", "efa-only"),) * 31))
P6_B300 = (("interface",), *((("efa-only", "efa"),) * 16))
ORDERS = {
    "on_demand": PLAIN,
    "spot": dataclasses.replace(PLAIN, market="spot", max_price=2.5),
    "efa": dataclasses.replace(
        PLAIN,
        instance_type="p4d.24xlarge",
        count=4,
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


def test_many_cards_take_efa_without_a_public_address() -> None:
    interfaces = requests.interfaces(dataclasses.replace(PLAIN, cards=P5))
    assert len(interfaces) == requests.interface_count(P5) == 32
    assert [each["DeviceIndex"] for each in interfaces] == [0] + [1] * 31
    assert [each.get("NetworkCardIndex") for each in interfaces] == list(range(32))
    assert interfaces[0]["InterfaceType"] == "efa"
    assert {each["InterfaceType"] for each in interfaces[1:]} == {"efa-only"}
    assert not any("AssociatePublicIpAddress" in each for each in interfaces)


def test_a_first_card_that_takes_no_efa_is_a_plain_one() -> None:
    interfaces = requests.interfaces(dataclasses.replace(PLAIN, cards=P6_B300))
    assert len(interfaces) == requests.interface_count(P6_B300) == 17
    assert "InterfaceType" not in interfaces[0]
    assert {each["InterfaceType"] for each in interfaces[1:]} == {"efa-only"}


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
