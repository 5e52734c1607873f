"""Launches on EC2 in the box: what is made, where, with which rights, and that nothing is left."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from flowlite.api.adapters import adapter
from flowlite.errors import (
    CapacityUnavailable,
    PermissionRefused,
    QuotaExceeded,
)
from flowlite.provider import Finding, Instance, Plan
from tests.helpers import eventually
from tests.providers.aws_client import SECONDS, TYPE, ZONES, Client, groups

pytestmark = pytest.mark.timeout(900)


# The way it goes


def test_a_gang_is_one_call_and_leaves_nothing(aws: Client) -> None:
    intent = aws.intent(num_instances=3)
    found = aws.launch(intent)
    assert len({each.id for each in found}) == 3
    assert {each.data["zone"] for each in found} == {"us-east-1a"}
    assert all(each.price_per_hour == 0.08925 and each.launched_at > 0 for each in found)
    for each in aws.alive():
        assert each["tags"]["flowlite:task"] == "t1"
        assert each["tags"]["flowlite:token"] == intent.token
        assert each["tags"]["flowlite:deadline"] == "none"
        assert each["tags"]["flowlite:home"] == adapter("aws")._context.home_id
    assert len(aws.launches()) == 1
    # The same token, from another process, is the same machines.
    again = aws.launch(intent)
    assert [each.id for each in again] == [each.id for each in found]
    assert len(aws.launches()) == 1
    for instance in again:
        with adapter("aws").connect(instance) as connection:
            assert connection.run(["id", "-u"]).stdout == b"0\n"
    assert groups(aws.box) == ["flowlite-t1"]
    aws.end()
    assert groups(aws.box) == []
    # What it was charged for is exact: as EC2 says, to the second.
    for each in adapter("aws").list_instances("t1"):
        assert each.state == "ended"
        assert each.launched_at <= each.ended_at <= time.time() + 1
        assert "User initiated" in each.why
        assert not each.preempted


# It counts all calls, and each that fails is made again.
@pytest.mark.no_random_faults
def test_no_call_is_made_for_a_single_node(aws: Client) -> None:
    """The calls for four nodes are those for one: none is per node."""

    def calls_for(task: str, count: int) -> dict[str, int]:
        intent = aws.intent(task, num_instances=count)
        before = len(aws.box.aws.calls)
        aws.launch(intent)
        aws.end(task)
        names = [name for name, _ in aws.box.aws.calls[before:]]
        # How often is looked depends on how long it takes.
        return {name: names.count(name) for name in names if name != "DescribeInstances"}

    one, four = calls_for("t1", 1), calls_for("t4", 4)
    assert one == four
    assert sum(four.values()) < 12


# A machine that EC2 takes away by itself closes its spot request by itself.
@pytest.mark.no_random_faults
def test_everything_bears_the_tags_and_ends_with_the_machine(aws: Client) -> None:
    aws.launch(aws.intent(spot=True, num_instances=1, max_price_per_hour=0.07))
    (sent,) = aws.launches().values()
    assert sent["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.07"
    kinds = [v for k, v in sent.items() if k.endswith("ResourceType")]
    assert kinds == ["instance", "volume", "network-interface", "spot-instances-request"]
    assert sent["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert aws.box.aws.leftovers()["spot requests"]
    aws.end()
    assert aws.calls("CancelSpotInstanceRequests")


@pytest.mark.no_random_faults
@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InternalError"])
def test_spot_machines_end_also_if_their_requests_cannot_be_cancelled(
    aws: Client, code: str
) -> None:
    found = aws.launch(aws.intent(spot=True))
    aws.box.aws.fault("CancelSpotInstanceRequests", code=code, times=-1)

    def ended() -> bool:
        # Again, since EC2 may not know a new machine yet.
        adapter("aws").terminate(found)
        return aws.alive() == []

    eventually(ended)
    eventually(lambda: aws.box.aws.leftovers()["spot requests"] == [])
    aws.box.aws.clear_faults()
    aws.end()


def test_a_spot_machine_that_is_taken_away_is_listed_as_such(aws: Client) -> None:
    (instance,) = aws.launch(aws.intent(spot=True, num_instances=1))
    aws.box.aws.preempt([instance.id], 0.0)

    def taken() -> Instance | None:
        (listed,) = adapter("aws").list_instances("t1")
        return listed if listed.state == "ended" else None

    gone = eventually(taken, timeout=SECONDS, every=0.1)
    assert gone.preempted
    assert "pot" in gone.why


def test_nodes_of_one_task_are_in_one_zone_also_later(aws: Client) -> None:
    aws.box.aws.capacity(TYPE, "us-east-1a", 0)
    first = aws.launch(aws.intent(num_instances=1))
    aws.box.aws.capacity(TYPE, "us-east-1a", None)
    more = aws.launch(aws.intent(number=2, num_instances=1))
    assert {each.data["zone"] for each in [*first, *more]} == {"us-east-1b"}
    assert {each.id for each in adapter("aws").list_instances("t1")} == {first[0].id, more[0].id}
    aws.end()


# No room, no quota, no right


def test_without_room_the_next_zone_is_asked_under_another_token(aws: Client) -> None:
    for zone in ZONES[:2]:
        aws.box.aws.capacity(TYPE, zone, 1)
    found = aws.launch(aws.intent())
    assert {each.data["zone"] for each in found} == {"us-east-1c"}
    zones = [each["Placement.AvailabilityZone"] for each in aws.launches().values()]
    # A request that EC2 has throttled is made again under another token.
    assert list(dict.fromkeys(zones)) == ZONES[:3]
    assert len(aws.alive()) == 2
    aws.end()


def test_without_room_anywhere_it_says_so_and_is_asked_again_later(aws: Client) -> None:
    for zone in ZONES:
        aws.box.aws.capacity(TYPE, zone, 1)
    intent = aws.intent()
    refused = aws.refused(intent)
    assert isinstance(refused, CapacityUnavailable)
    assert "no room for 2 × c7i.large" in str(refused)
    for zone in intent.plan["options"]["places"][0]["zones"]:
        assert zone["zone"] in str(refused)
    assert str(refused).count("InsufficientInstanceCapacity") == 1, "one sentence for all zones"
    assert refused.retry_after >= 10
    assert aws.alive() == []
    assert [e for e in adapter("aws").list_instances("t1") if e.state != "ended"] == []
    aws.box.aws.capacity(TYPE, "us-east-1c", None)
    found = aws.launch(intent)
    assert {each.data["zone"] for each in found} == {"us-east-1c"}
    aws.end()


def test_what_no_zone_offers_is_no_lack_of_room(aws: Client) -> None:
    aws.box.aws.fault("RunInstances", code="Unsupported", times=-1)
    refused = aws.refused(aws.intent())
    assert "Unsupported" in str(refused)
    assert not isinstance(refused, CapacityUnavailable)


def test_a_quota_that_is_too_small_stops_before_anything_is_made(aws: Client) -> None:
    aws.box.aws.quota("L-1216C47A", 3)
    refused = aws.refused(aws.intent())
    assert isinstance(refused, QuotaExceeded)
    assert re.search(r"4 vCPUs.*3 in us-east-1.*L-1216C47A", str(refused))
    assert not aws.calls("RunInstances")
    assert groups(aws.box) == []


def test_a_quota_that_is_used_up_names_its_number(aws: Client) -> None:
    aws.box.aws.fault("servicequotas:GetServiceQuota", code="AccessDeniedException")
    aws.box.aws.fault("RunInstances", code="VcpuLimitExceeded")
    refused = aws.refused(aws.intent())
    assert isinstance(refused, QuotaExceeded)
    assert re.search(r"VcpuLimitExceeded.*L-1216C47A.*Service Quotas", str(refused))
    # One zone was enough to know.
    assert {each["Placement.AvailabilityZone"] for each in aws.launches().values()} == {ZONES[0]}


def test_a_missing_right_is_named(aws: Client) -> None:
    intent = aws.intent()
    policy = adapter("aws").policy()
    allowed = [s for s in policy["Statement"] if "ec2:RunInstances" not in s["Action"]]
    aws.box.aws.policy({**policy, "Statement": allowed})
    refused = aws.refused(intent)
    assert isinstance(refused, PermissionRefused)
    assert "lack the permission ec2:RunInstances" in str(refused)
    aws.box.aws.policy(None)
    assert aws.alive() == []


def test_the_least_policy_is_enough(aws: Client) -> None:
    aws.box.aws.policy(adapter("aws").policy())
    assert adapter("aws").offers("h100:8", 2)
    assert [each for each in adapter("aws").check() if not each.ok] == []
    aws.launch(aws.intent(spot=True))
    assert adapter("aws").others() == []
    aws.end()
    assert adapter("aws").list_instances() is not None


def test_what_is_missing_is_found_without_a_launch(aws: Client) -> None:
    policy = adapter("aws").policy()
    kept = [s for s in policy["Statement"] if s["Sid"] not in ("MakeGroups", "LaunchWithOurTag")]
    aws.box.aws.policy({**policy, "Statement": kept})
    wrong = {each.what: each.detail for each in adapter("aws").check() if not each.ok}
    assert set(wrong) == {"ec2:RunInstances", "ec2:CreateSecurityGroup", "ec2:CreatePlacementGroup"}
    assert "lack the permission ec2:RunInstances" in wrong["ec2:RunInstances"]


def test_whether_machines_may_be_ended_is_tried_on_one_of_ours(aws: Client) -> None:
    def found() -> dict[str, Finding]:
        return {each.what: each for each in adapter("aws").check()}

    told = found()
    assert "ec2:TerminateInstances" not in told
    assert "ec2:TerminateInstances" in told["not checked"].detail
    aws.launch(aws.intent())
    policy = adapter("aws").policy()
    for each in policy["Statement"]:
        each["Action"] = [a for a in each["Action"] if a != "ec2:TerminateInstances"]
    aws.box.aws.policy(policy)
    told = found()
    assert not told["ec2:TerminateInstances"].ok
    assert "ec2:TerminateInstances" not in told["not checked"].detail
    aws.box.aws.policy(None)
    assert found()["ec2:TerminateInstances"].ok
    assert len(aws.alive()) == 2
    aws.end()


def test_wrong_credentials_are_found_and_never_shown(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecretindeed")
    found = adapter("aws").check()
    assert found[-1].what == "credentials"
    assert not found[-1].ok
    assert "does not know this access key" in found[-1].detail
    assert "verysecret" not in " ".join(each.detail for each in found)


def test_a_plan_that_costs_nothing_is_one_of_a_capacity_block(aws: Client) -> None:
    plan = Plan.from_json(aws.intent().plan)
    assert adapter("aws").price_to_launch(plan) == plan.price_per_hour > 0
    free = dataclasses.replace(plan, price_per_hour=0.0)
    assert adapter("aws").price_to_launch(free) == plan.price_per_hour
    aws.settings('capacity_block = "cr-0a"')
    assert adapter("aws").price_to_launch(free) == 0.0
