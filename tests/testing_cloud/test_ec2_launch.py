"""Launching in the box's EC2, as a client of AWS sees it."""

from __future__ import annotations

import base64
import gzip
from functools import partial
from typing import Any

import boto3
import pytest

from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually
from tests.testing_cloud.ec2_client import (
    DEEP_LEARNING,
    TYPE,
    ZONE,
    answers_on_22,
    client,
    in_state,
    launch,
    on_machine,
    open_ssh,
    refused,
    show,
    state,
    truth,
)

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
# These test the box itself, through a client that repeats nothing.
pytestmark = [pytest.mark.needs("hosts"), pytest.mark.no_random_faults]


def of_token(ec2: Any, token: str) -> list[str]:
    found = ec2.describe_instances(Filters=[{"Name": "client-token", "Values": [token]}])
    return [i["InstanceId"] for r in found["Reservations"] for i in r["Instances"]]


def test_an_instance_is_a_machine(box: CloudInABox, ec2: Any) -> None:
    open_ssh(ec2)
    # Long enough for a busy machine to see it, and still a boot.
    box.aws.timing(boot=5.0)
    (id,) = launch(ec2, UserData="#!/bin/sh\necho this is $(id -un) of $(hostname)\n")
    assert state(ec2, id) == "pending"
    shown = in_state(ec2, id, "running")
    private, public = shown["PrivateIpAddress"], shown["PublicIpAddress"]
    eventually(lambda: answers_on_22(public))
    words = "this is root of ip-" + private.replace(".", "-")
    eventually(
        lambda: words in ec2.get_console_output(InstanceId=id).get("Output", ""), what="console"
    )
    assert private in on_machine(box, id, "ip -4 -br addr show eth0")


def test_machines_reach_each_other_and_the_laptop_only_their_public_side(
    box: CloudInABox, ec2: Any
) -> None:
    open_ssh(ec2)
    one, other = launch(ec2, 2)
    address = in_state(ec2, one, "running")["PrivateIpAddress"]
    in_state(ec2, other, "running")
    probe = f"import socket; print(socket.create_connection(('{address}', 22), 5).recv(3))"
    eventually(lambda: on_machine(box, other, f'python3 -c "{probe}"') == "b'SSH'")
    assert not answers_on_22(address)


def test_a_security_group_lets_in_whom_it_names(box: CloudInABox, ec2: Any) -> None:
    box.aws.timing(unknown=0.0)
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    made = ec2.create_security_group(GroupName="gang", Description="gang", VpcId=vpc)
    gang = made["GroupId"]
    one, other = launch(ec2, 2, SecurityGroupIds=[gang])
    (stranger,) = launch(ec2)
    for id in (other, stranger):
        in_state(ec2, id, "running")
    shown = in_state(ec2, one, "running")
    address, public = shown["PrivateIpAddress"], shown["PublicIpAddress"]
    eventually(lambda: "22" in on_machine(box, one, "ss -Hltn sport = 22"))

    def reached_from(id: str) -> bool:
        probe = f"import socket; print(socket.create_connection(('{address}', 22), 1).recv(3))"
        return on_machine(box, id, f'python3 -c "{probe}"') == "b'SSH'"

    assert not answers_on_22(public)
    assert not reached_from(other)
    itself = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": gang}]}
    ec2.authorize_security_group_ingress(GroupId=gang, IpPermissions=[itself])
    assert reached_from(other)
    assert not reached_from(stranger)
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    laptop = {**ssh, "IpRanges": [{"CidrIp": "10.78.0.1/32"}]}
    ec2.authorize_security_group_ingress(GroupId=gang, IpPermissions=[laptop])
    assert answers_on_22(public)
    with refused("DependencyViolation"):
        ec2.delete_security_group(GroupId=gang)
    ec2.revoke_security_group_ingress(GroupId=gang, IpPermissions=[laptop])
    assert not answers_on_22(public)


def test_every_boot_has_host_keys_of_its_own(box: CloudInABox, ec2: Any) -> None:
    keys = set()
    for id in launch(ec2, 2):
        in_state(ec2, id, "running")
        keys.add(eventually(partial(on_machine, box, id, f"cat {HOST_KEY}")))
    assert len(keys) == 2


def test_the_owner_of_a_key_pair_can_log_in_but_not_as_root(box: CloudInABox, ec2: Any) -> None:
    box_key = (box.cluster.directory / "key.pub").read_text()
    ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=box_key.encode())
    open_ssh(ec2)
    (id,) = launch(ec2, KeyName="mine")
    address = in_state(ec2, id, "running")["PublicIpAddress"]
    eventually(lambda: answers_on_22(address))
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    ssh = ["ssh", *options, "-i", str(box.cluster.key), "-o", "BatchMode=yes"]
    done = box.cluster.laptop.exec([*ssh, f"ubuntu@{address}", "sudo -n id -un"])
    assert done.stdout == "root\n", done.stderr
    done = box.cluster.laptop.exec([*ssh, f"root@{address}", "id -un"])
    assert "log" in done.stdout
    assert done.returncode == 142


def test_a_token_launches_once(box: CloudInABox, ec2: Any) -> None:
    asked = {"ClientToken": "a-token", "UserData": "#!/bin/sh\n"}
    ids = launch(ec2, 2, **asked)
    assert launch(ec2, 2, **asked) == ids
    assert sorted(of_token(ec2, "a-token")) == sorted(ids)
    assert len(box.aws.instances()) == 2
    with refused("IdempotentParameterMismatch"):
        launch(ec2, 2, **{**asked, "UserData": "#!/bin/bash\n"})
    with refused("IdempotentParameterMismatch"):
        launch(ec2, 1, **asked)


def test_a_token_counts_per_zone_if_the_zone_is_named(box: CloudInABox, ec2: Any) -> None:
    def in_zone(zone: str, **more: Any) -> list[str]:
        return launch(ec2, ClientToken="t", Placement={"AvailabilityZone": zone}, **more)

    (first,) = in_zone("us-east-1a")
    (second,) = in_zone("us-east-1b")
    assert first != second
    assert in_zone("us-east-1a") == [first]
    with refused("IdempotentParameterMismatch"):
        in_zone("us-east-1c", InstanceType="g5.2xlarge")


def test_a_token_is_still_good_when_its_instances_have_ended(box: CloudInABox, ec2: Any) -> None:
    ids = launch(ec2, ClientToken="t")
    ec2.terminate_instances(InstanceIds=ids)
    in_state(ec2, ids[0], "terminated")
    assert launch(ec2, ClientToken="t") == ids
    assert len(box.aws.instances()) == 1


def test_a_launch_without_capacity_makes_nothing(box: CloudInABox, ec2: Any) -> None:
    box.aws.capacity(TYPE, ZONE, 1)
    there = {"Placement": {"AvailabilityZone": ZONE}}
    with refused("InsufficientInstanceCapacity"):
        launch(ec2, 2, **there)
    assert box.aws.instances() == []
    assert len(launch(ec2, MinCount=1, MaxCount=3, **there)) == 1
    # Without a zone EC2 looks for one itself.
    assert show(ec2, launch(ec2, 2)[0])["Placement"]["AvailabilityZone"] == "us-east-1b"


def test_there_are_only_so_many_machines(box: CloudInABox, ec2: Any) -> None:
    ids = launch(ec2, len(box.cluster))
    with refused("InsufficientInstanceCapacity"):
        launch(ec2)
    ec2.terminate_instances(InstanceIds=ids)
    eventually(lambda: {i["state"] for i in box.aws.instances()} == {"terminated"})
    eventually(lambda: box.cluster.ask("free") == len(box.cluster))
    launch(ec2)


def test_a_quota_counts_vcpus(box: CloudInABox, ec2: Any) -> None:
    box.aws.quota("L-DB2E81BA", 8)
    launch(ec2, 2)
    with refused("VcpuLimitExceeded"):
        launch(ec2)
    box.aws.quota("L-3819A6DF", 0)
    with refused("MaxSpotInstanceCountExceeded"):
        launch(ec2, InstanceMarketOptions={"MarketType": "spot"})
    quotas = client("service-quotas")
    told = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]
    assert (told["Value"], told["QuotaName"]) == (8, "Running On-Demand G and VT instances")


def test_a_quota_counts_what_has_just_ended(box: CloudInABox, ec2: Any) -> None:
    box.aws.quota("L-DB2E81BA", 4)
    box.aws.timing(counted=1000.0)
    (id,) = launch(ec2)
    ec2.terminate_instances(InstanceIds=[id])
    in_state(ec2, id, "terminated")
    with refused("VcpuLimitExceeded"):
        launch(ec2)
    box.aws.timing(counted=0.0)
    launch(ec2)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"ImageId": "ami-00000000000000000"}, r"InvalidAMIID.NotFound"),
        ({"InstanceType": "h100.8xlarge"}, "InvalidInstanceType"),
        ({"UserData": "#" * 16_385}, "InvalidParameterValue"),
        ({"MinCount": 2, "MaxCount": 1}, "InvalidParameterValue"),
        ({"Placement": {"GroupName": "nobody"}}, r"InvalidPlacementGroup.Unknown"),
        ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported"),
        ({"DryRun": True}, "DryRunOperation"),
        (
            {"NetworkInterfaces": [{"DeviceIndex": 0}], "SecurityGroupIds": ["sg-1"]},
            "InvalidParameterCombination",
        ),
    ],
)
def test_what_ec2_would_refuse_is_refused(
    box: CloudInABox, ec2: Any, asked: dict[str, Any], code: str
) -> None:
    with refused(code):
        launch(ec2, **asked)
    assert box.aws.instances() == []


def test_tags_go_to_everything_that_a_launch_makes(box: CloudInABox, ec2: Any) -> None:
    kinds = ("instance", "volume", "network-interface", "spot-instances-request")
    tags = [{"Key": "flowlite:task", "Value": "t1"}]
    launch(
        ec2,
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in kinds],
        InstanceMarketOptions={"MarketType": "spot"},
    )
    ours = [{"Name": "tag:flowlite:task", "Values": ["t1"]}]
    assert len(ec2.describe_instances(Filters=ours)["Reservations"]) == 1
    assert len(ec2.describe_volumes(Filters=ours)["Volumes"]) == 1
    assert len(ec2.describe_network_interfaces(Filters=ours)["NetworkInterfaces"]) == 1
    assert len(ec2.describe_spot_instance_requests(Filters=ours)["SpotInstanceRequests"]) == 1


def test_efa_interfaces_are_kept_card_by_card(box: CloudInABox, ec2: Any) -> None:
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    nics = [
        {
            "DeviceIndex": int(card > 0),
            "NetworkCardIndex": card,
            "InterfaceType": "efa" if card % 4 == 0 else "efa-only",
            "SubnetId": subnet,
        }
        for card in range(8)
    ]
    (id,) = launch(ec2, InstanceType="p5.48xlarge", NetworkInterfaces=nics)
    shown = show(ec2, id)
    cards = [
        (i["Attachment"]["NetworkCardIndex"], i["Attachment"]["DeviceIndex"], i["InterfaceType"])
        for i in shown["NetworkInterfaces"]
    ]
    assert cards == [(n["NetworkCardIndex"], n["DeviceIndex"], n["InterfaceType"]) for n in nics]
    # EC2 gives an address to instances with one interface only.
    assert "PublicIpAddress" not in shown
    with refused("InvalidParameterCombination"):
        launch(ec2, NetworkInterfaces=[{**nic, "AssociatePublicIpAddress": True} for nic in nics])
    with refused("InvalidParameterCombination"):
        launch(ec2, InstanceType="t3.micro", NetworkInterfaces=nics[:1])


def test_efa_interfaces_are_where_their_cards_take_them(box: CloudInABox, ec2: Any) -> None:
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]

    def nic(card: int, device: int, kind: str) -> dict[str, Any]:
        return {
            "NetworkCardIndex": card,
            "DeviceIndex": device,
            "InterfaceType": kind,
            "SubnetId": subnet,
        }

    plain = nic(0, 0, "interface")
    for_efa = [nic(0, 1, "efa-only"), nic(1, 0, "efa-only")]
    (id,) = launch(ec2, InstanceType="p5.48xlarge", NetworkInterfaces=[plain, *for_efa])
    kinds = [i["InterfaceType"] for i in show(ec2, id)["NetworkInterfaces"]]
    assert kinds == ["interface", "efa-only", "efa-only"]
    # Two interfaces fit on a card of p5.
    with refused("InvalidParameterValue"):
        launch(ec2, InstanceType="p5.48xlarge", NetworkInterfaces=[plain, nic(1, 2, "efa-only")])
    with refused("InvalidParameterCombination"):
        launch(ec2, InstanceType="p5.48xlarge", NetworkInterfaces=[plain, plain])
    with refused("InvalidParameterCombination"):
        launch(ec2, InstanceType="p5.48xlarge", NetworkInterfaces=[nic(0, 0, "efa-only")])


def test_a_placement_group_is_kept_while_it_is_used(box: CloudInABox, ec2: Any) -> None:
    ec2.create_placement_group(GroupName="close", Strategy="cluster")
    with refused(r"InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(GroupName="close", Strategy="cluster")
    (id,) = launch(ec2, Placement={"GroupName": "close"})
    assert show(ec2, id)["Placement"]["GroupName"] == "close"
    with refused(r"InvalidPlacementGroup.InUse"):
        ec2.delete_placement_group(GroupName="close")
    ec2.terminate_instances(InstanceIds=[id])
    in_state(ec2, id, "terminated")
    ec2.delete_placement_group(GroupName="close")
    assert ec2.describe_placement_groups()["PlacementGroups"] == []


def test_a_capacity_reservation_holds_so_many(box: CloudInABox, ec2: Any) -> None:
    reserved = box.aws.reserve("p5.48xlarge", ZONE, 1, block=True)
    (listed,) = ec2.describe_capacity_reservations()["CapacityReservations"]
    assert (listed["CapacityReservationId"], listed["AvailableInstanceCount"]) == (reserved, 1)
    target = {"CapacityReservationTarget": {"CapacityReservationId": reserved}}
    asked = {
        "InstanceType": "p5.48xlarge",
        "Placement": {"AvailabilityZone": ZONE},
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": target,
    }
    (id,) = launch(ec2, **asked)
    assert show(ec2, id)["CapacityReservationId"] == reserved
    with refused("ReservationCapacityExceeded"):
        launch(ec2, **asked)


def test_listings_come_in_pages(box: CloudInABox, ec2: Any) -> None:
    ids = {launch(ec2)[0] for _ in range(5)}
    pages = list(ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 2}))
    assert len(pages) > 1
    assert {
        i["InstanceId"] for p in pages for r in p["Reservations"] for i in r["Instances"]
    } == ids


def test_images_are_found_by_parameter(box: CloudInABox, ec2: Any) -> None:
    image = client("ssm").get_parameter(Name=DEEP_LEARNING)["Parameter"]["Value"]
    (shown,) = ec2.describe_images(ImageIds=[image])["Images"]
    assert shown["RootDeviceName"] == "/dev/sda1"
    assert shown["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 75
    assert show(ec2, launch(ec2)[0])["ImageId"] == image


def test_user_data_may_be_packed(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2, UserData=gzip.compress(b"#!/bin/sh\necho unpacked\n"))
    eventually(lambda: "unpacked" in box.aws.console(id))
    told = ec2.describe_instance_attribute(InstanceId=id, Attribute="userData")["UserData"]["Value"]
    assert gzip.decompress(base64.b64decode(told)).startswith(b"#!/bin/sh")


def test_another_region_is_another_place(box: CloudInABox, ec2: Any) -> None:
    west = boto3.client("ec2", region_name="us-west-2")
    (id,) = launch(west)
    assert truth(box, id)["zone"] == "us-west-2a"
    assert ec2.describe_instances()["Reservations"] == []
    with refused(r"InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=[id])


def test_an_account_has_the_regions_of_a_new_one_or_those_that_it_is_given(
    box: CloudInABox,
) -> None:
    box.aws.reset()
    anywhere = client("ec2")
    there = {each["RegionName"] for each in anywhere.describe_regions()["Regions"]}
    # Those that have to be opted into, and those of other partitions, are not among them.
    assert len(there) == 17
    assert not there & {"af-south-1", "us-gov-west-1", "cn-north-1"}
    with refused("InvalidParameterValue"):
        anywhere.describe_regions(RegionNames=["us-east-1", "af-south-1"])
    with refused("AuthFailure"):
        boto3.client("ec2", region_name="af-south-1").describe_instances()
    box.aws.regions("us-east-1", "eu-west-1")
    two = anywhere.describe_regions()["Regions"]
    assert sorted(each["RegionName"] for each in two) == ["eu-west-1", "us-east-1"]
    with pytest.raises(RuntimeError, match="no region mars-1"):
        box.aws.regions("mars-1")
