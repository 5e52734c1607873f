"""How instances of the box end: by the client, by themselves, by the cloud, by accident."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually
from tests.testing_cloud.ec2_client import (
    TYPE,
    ZONE,
    answers_on_22,
    client,
    in_state,
    launch,
    metadata,
    on_machine,
    open_ssh,
    refused,
    show,
    state,
    truth,
)

# These test the box itself, through a client that repeats nothing.
pytestmark = [pytest.mark.needs("hosts"), pytest.mark.no_random_faults]
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def free_again(box: CloudInABox) -> None:
    eventually(lambda: box.cluster.ask("free") == len(box.cluster))


def test_terminated_means_gone(box: CloudInABox, ec2: Any) -> None:
    open_ssh(ec2)
    (id,) = launch(ec2)
    address = in_state(ec2, id, "running")["PublicIpAddress"]
    eventually(lambda: answers_on_22(address))
    (change,) = ec2.terminate_instances(InstanceIds=[id])["TerminatingInstances"]
    assert change["PreviousState"]["Name"] == "running"
    assert change["CurrentState"]["Name"] == "shutting-down"
    shown = in_state(ec2, id, "terminated")
    assert shown["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert shown["StateTransitionReason"].startswith("User initiated (20")
    assert shown["StateTransitionReason"].endswith(" GMT)")
    assert "PublicIpAddress" not in shown
    assert "PrivateIpAddress" not in shown
    free_again(box)
    assert not answers_on_22(address)
    assert not any(box.aws.leftovers().values())


def test_machines_of_a_capacity_block_end_half_an_hour_before_it(
    box: CloudInABox, ec2: Any
) -> None:
    block = {
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "Placement": {"AvailabilityZone": ZONE},
    }

    def reserve(seconds: float) -> dict[str, Any]:
        name = box.aws.reserve(TYPE, ZONE, 1, block=True, ends_in=seconds)
        target = {"CapacityReservationTarget": {"CapacityReservationId": name}}
        return {**block, "CapacityReservationSpecification": target}

    (short,) = launch(ec2, **reserve(30 * 60 + 3.0))
    (long,) = launch(ec2, **reserve(86400.0))
    shown = in_state(ec2, short, "terminated")
    assert shown["StateReason"]["Message"].endswith("has come to its end")
    assert state(ec2, long) in ("pending", "running")


def test_what_ended_is_listed_for_a_while(box: CloudInABox, ec2: Any) -> None:
    ended, kept = launch(ec2, 2)
    ec2.terminate_instances(InstanceIds=[ended])
    in_state(ec2, ended, "terminated")
    box.aws.forget_ended()
    with refused(r"InvalidInstanceID.NotFound"):
        show(ec2, ended)
    assert state(ec2, kept)


def test_terminating_again_or_in_vain(box: CloudInABox, ec2: Any) -> None:
    slow, quick = launch(ec2, 2)
    box.aws.timing(stop=600.0)
    for _ in range(2):
        ec2.terminate_instances(InstanceIds=[slow])
    assert state(ec2, slow) == "shutting-down"
    with refused(r"InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=["i-00000000000000000"])
    box.aws.timing(stop=0.1)
    ec2.terminate_instances(InstanceIds=[quick])
    in_state(ec2, quick, "terminated")
    ec2.terminate_instances(InstanceIds=[quick])


def test_one_that_is_unknown_saves_the_others(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2)
    with refused(r"InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=[id, "i-00000000000000000"])
    in_state(ec2, id, "running")


@pytest.mark.parametrize(("behaviour", "end"), [("terminate", "terminated"), ("stop", "stopped")])
def test_an_instance_that_powers_itself_off(
    box: CloudInABox, ec2: Any, behaviour: str, end: str
) -> None:
    (id,) = launch(ec2, InstanceInitiatedShutdownBehavior=behaviour)
    in_state(ec2, id, "running")
    on_machine(box, id, "poweroff -f")
    shown = in_state(ec2, id, end)
    assert shown["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    if end == "stopped":
        ec2.start_instances(InstanceIds=[id])
        in_state(ec2, id, "running")


def test_a_reboot_keeps_an_instance(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2)
    in_state(ec2, id, "running")
    before = box.host(truth(box, id)).pid
    ec2.reboot_instances(InstanceIds=[id])
    assert box.host(truth(box, id)).pid != before
    assert state(ec2, id) == "running"


def test_one_that_powers_itself_off_while_it_boots(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2, UserData="#!/bin/sh\necho no disk found\npoweroff\n")
    in_state(ec2, id, "terminated")
    assert "no disk found" in ec2.get_console_output(InstanceId=id)["Output"]


def test_one_that_dies_at_boot_and_one_that_never_boots(box: CloudInABox, ec2: Any) -> None:
    box.aws.boots("dies", "never", "runs")
    dead, mute, well = launch(ec2, 3)
    shown = in_state(ec2, dead, "terminated")
    assert shown["StateReason"]["Code"] == "Server.InternalError"
    in_state(ec2, well, "running")
    assert not answers_on_22(truth(box, mute)["public_address"])
    ec2.terminate_instances(InstanceIds=[mute])
    in_state(ec2, mute, "terminated")


def test_a_power_cut_is_seen_or_not(box: CloudInABox, ec2: Any) -> None:
    seen, unseen = launch(ec2, 2)
    for id in (seen, unseen):
        in_state(ec2, id, "running")
    box.aws.die(seen)
    box.aws.die(unseen, noticed=False)
    shown = in_state(ec2, seen, "terminated")
    assert shown["StateTransitionReason"].startswith("Service initiated (")
    assert state(ec2, unseen) == "running"
    ec2.terminate_instances(InstanceIds=[unseen])
    in_state(ec2, unseen, "terminated")
    free_again(box)


def test_a_spot_instance_is_taken_back_with_notice(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2, **SPOT)
    request = in_state(ec2, id, "running")["SpotInstanceRequestId"]
    assert metadata(box, id, "spot/instance-action").endswith("404")
    box.aws.advise([id])
    recommended = metadata(box, id, "events/recommendations/rebalance").partition("\n")[0]
    assert json.loads(recommended)["noticeTime"].endswith("Z")
    box.aws.preempt([id], 1.5)
    told = json.loads(metadata(box, id, "spot/instance-action").partition("\n")[0])
    assert told["action"] == "terminate"
    assert state(ec2, id) == "running"
    shown = in_state(ec2, id, "terminated")
    assert shown["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    asked = ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request])
    (listed,) = asked["SpotInstanceRequests"]
    assert (listed["State"], listed["Status"]["Code"]) == (
        "closed",
        "instance-terminated-no-capacity",
    )


def test_a_cancelled_spot_request_leaves_its_instance(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2, **SPOT)
    request = show(ec2, id)["SpotInstanceRequestId"]
    ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request])
    in_state(ec2, id, "running")
    (listed,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert listed["State"] == "cancelled"


def test_the_metadata_service_is_version_two(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2, MetadataOptions={"HttpTokens": "required"})
    in_state(ec2, id, "running")
    assert metadata(box, id, "instance-id") == f"{id}\n200"
    assert metadata(box, id, "placement/availability-zone").startswith(ZONE)
    bare = "curl -s -o /dev/null -w '%{http_code}' http://169.254.169.254/latest/meta-data/ami-id"
    assert on_machine(box, id, bare) == "401"


def test_spot_prices_and_ceilings(box: CloudInABox, ec2: Any) -> None:
    def newest() -> float:
        told = ec2.describe_spot_price_history(
            InstanceTypes=[TYPE], AvailabilityZone=ZONE, ProductDescriptions=["Linux/UNIX"]
        )["SpotPriceHistory"]
        return float(max(told, key=lambda entry: entry["Timestamp"])["SpotPrice"])

    assert newest() == pytest.approx(0.4024)
    box.aws.spot_price(TYPE, ZONE, 0.9)
    assert newest() == 0.9
    options = {"MaxPrice": "0.5", "SpotInstanceType": "one-time"}
    market = {"MarketType": "spot", "SpotOptions": options}
    there = {"Placement": {"AvailabilityZone": ZONE}}
    with refused("SpotMaxPriceTooLow"):
        launch(ec2, InstanceMarketOptions=market, **there)
    box.aws.spot_price(TYPE, ZONE, 0.5)
    (id,) = launch(ec2, InstanceMarketOptions=market, **there)
    assert show(ec2, id)["InstanceLifecycle"] == "spot"
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert float(request["SpotPrice"]) == 0.5


def test_prices_on_demand(box: CloudInABox) -> None:
    wanted = {"instanceType": "p5.48xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux"}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    pricing = client("pricing")
    (product,) = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    (term,) = json.loads(product)["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    assert (dimension["unit"], float(dimension["pricePerUnit"]["USD"])) == ("Hrs", 55.04)
