"""Launches on EC2 in the box through lost answers, late listings, dead clients, and machines that never come."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.errors import ConfigError, ProviderError, QuotaExceeded
from flowlite.provider import Instance, LaunchPending, Plan, Provider
from flowlite.state import clock
from flowlite.state.store import Store
from flowlite.supervise.cleanup.reconcile import Reconciled, reconcile
from flowlite.testing.subject import ProviderUnderTest
from provider_adapters.aws import ending, launching, session
from tests.helpers import eventually
from tests.providers.aws_client import SECONDS, TYPE, Client, groups, groups_made
from tests.providers.closed_lid import closed_lid

pytestmark = pytest.mark.timeout(900)
SLOW = pytest.mark.slow
# Another fault than the one that is set changes which requests are made, or what the first answer is; or it meets a
# client that repeats nothing. A request to end machines that fails is made again at the end of the task, not before.
ONE_FAULT = pytest.mark.no_random_faults


# Answers that are lost


@ONE_FAULT
@pytest.mark.parametrize(
    ("fault", "made"),
    [
        pytest.param({"code": "InternalError", "status": 500, "when": "before"}, 1, marks=SLOW),
        ({"code": "InternalError", "status": 500, "when": "after"}, 1),
        pytest.param(
            {"code": "Unavailable", "status": 503, "when": "after", "times": 3}, 1, marks=SLOW
        ),
        ({"code": "RequestLimitExceeded", "status": 503, "when": "before", "times": 2}, 3),
        pytest.param({"hang": 0.1, "when": "after"}, 1, marks=SLOW),
        ({"hang": 5.0, "when": "after"}, 1),
        pytest.param({"hang": 5.0, "when": "before"}, 1, marks=SLOW),
    ],
    ids=["5xx before", "5xx after", "5xx thrice", "throttled", "dropped", "timeout", "not sent"],
)
def test_a_lost_answer_is_settled_by_the_same_request(
    aws: Client, fault: dict[str, Any], made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_ONCE_SECONDS", 2.0)
    aws.box.aws.fault("RunInstances", **fault)
    intent = aws.intent()
    found = aws.launch(intent)
    sent = aws.calls("RunInstances")
    assert len(sent) > 1
    # Only what had no effect for certain is asked again under another token.
    assert len({each["ClientToken"] for each in sent}) == made
    assert {each["id"] for each in aws.alive()} == {each.id for each in found}
    aws.end()


@ONE_FAULT
@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ExpiredToken"])
def test_a_refusal_of_the_repetition_says_nothing_of_the_request_that_was_lost(
    aws: Client, code: str
) -> None:
    """It would be taken for one that has made nothing, and the next zone would launch a second gang."""
    intent = aws.intent()
    aws.box.aws.fault("RunInstances", code="InternalError", status=500, when="after")
    aws.waiting(intent, "is asked again")
    made = {each["id"] for each in aws.alive()}
    aws.box.aws.fault("RunInstances", code=code, status=503, when="before", times=2)
    assert {each.id for each in aws.launch(intent)} == made
    assert {each["id"] for each in aws.alive()} == made
    assert len(aws.launches()) == 1
    aws.end()


@ONE_FAULT
def test_what_turns_out_not_to_have_been_made_is_asked_for_elsewhere(aws: Client) -> None:
    aws.box.aws.fault("RunInstances", code="InternalError", status=500, when="before")
    aws.box.aws.fault("RunInstances", code="InsufficientInstanceCapacity")
    found = aws.launch(aws.intent())
    sent = [
        (each["Placement.AvailabilityZone"], each["ClientToken"])
        for each in aws.calls("RunInstances")
    ]
    assert [zone for zone, _ in sent] == ["us-east-1a", "us-east-1a", "us-east-1b"]
    assert len({token for _, token in sent}) == 2
    assert {each.data["zone"] for each in found} == {"us-east-1b"}
    aws.end()


@ONE_FAULT
def test_what_a_lost_answer_has_made_is_listed_and_ended_without_another_launch(
    aws: Client,
) -> None:
    aws.box.aws.fault("RunInstances", code="InternalError", status=500, when="after")
    with pytest.raises(LaunchPending, match="not known"):
        adapter("aws").launch(aws.intent())
    assert len(aws.alive()) == 2
    aws.end()
    assert len(aws.calls("RunInstances")) == 1


@ONE_FAULT
def test_what_may_have_been_made_is_not_called_gone(aws: Client) -> None:
    aws.settings('listing_lag = "12s"')
    aws.box.aws.fault("RunInstances", code="InternalError", status=500, when="before")
    with pytest.raises(LaunchPending, match="not known"):
        adapter("aws").launch(aws.intent())
    (waiting,) = adapter("aws").list_instances("t1")
    assert waiting.state == "starting"
    # It cannot be ended, and ending it is no error.
    adapter("aws").terminate([waiting])
    eventually(lambda: adapter("aws").list_instances("t1") == [], timeout=SECONDS, every=0.2)
    assert aws.alive() == []
    assert len(aws.calls("RunInstances")) == 1


@ONE_FAULT
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_that_is_killed_in_the_call_leaves_nothing(aws: Client, when: str) -> None:
    intent = aws.intent()
    aws.box.aws.kill_client("RunInstances", when)
    process = Subject().start_launch(intent)
    assert process.wait(SECONDS) == -9
    assert len(aws.alive()) == (2 if when == "after" else 0)
    # Whoever takes over goes on with the same request.
    found = aws.launch(intent)
    assert {each["id"] for each in aws.alive()} == {each.id for each in found}
    assert len(aws.launches()) == 1
    aws.end()


def test_a_listing_that_lags_behind_is_not_believed(aws: Client) -> None:
    aws.box.aws.lag(600.0)
    intent = aws.intent()
    aws.waiting(intent, "2 of 2 nodes are still starting")
    made = {each["id"] for each in aws.alive()}
    assert {each.id for each in adapter("aws").list_instances("t1")} == made
    assert made <= {each.id for each in adapter("aws").list_instances()}
    aws.box.aws.lag(0.0)
    aws.launch(intent)
    aws.end()


# Machines that do not come


def test_nothing_is_launched_behind_a_jump_host_that_cannot_be_reached(aws: Client) -> None:
    aws.settings('jump = "nobody@nowhere.invalid"')
    said = str(aws.refused(aws.intent()))
    assert said.startswith("[aws] jump: ")
    assert "the name 'nowhere.invalid' is not known" in said
    assert "nothing was launched" in said
    assert aws.launches() == {}
    aws.end()


@ONE_FAULT
def test_a_machine_that_dies_while_it_boots_is_named_and_the_others_end(aws: Client) -> None:
    aws.box.aws.boots("runs", "never")
    intent = aws.intent()
    aws.waiting(intent, "still starting")
    # Not by itself: whoever connects in the moment in which it runs would be content with it.
    (booting,) = eventually(lambda: of_state(aws, "pending", but="running"), timeout=SECONDS)
    aws.box.aws.die(booting)
    said = str(aws.refused(intent))
    assert "ended while it booted" in said
    assert "i-" in said
    assert aws.alive() == []
    # The intent is over: asked again, it says the same and makes nothing.
    launches = aws.launches()
    with pytest.raises(ProviderError, match="ended while it booted"):
        adapter("aws").launch(intent)
    assert aws.launches() == launches
    aws.end()


def of_state(aws: Client, state: str, *, but: str) -> list[str]:
    """The machines in a state, once there is one in another."""
    found: dict[str, list[str]] = {}
    for each in aws.box.aws.instances():
        found.setdefault(each["state"], []).append(each["id"])
    return found.get(state, []) if but in found else []


def test_machines_that_died_while_nobody_looked_leave_no_group(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.box.aws.boots("never", "never")
    aws.waiting(aws.intent(), "still starting")
    for each in aws.alive():
        aws.box.aws.die(each["id"])
    eventually(lambda: not aws.alive(), timeout=SECONDS)
    monkeypatch.setattr(ending, "_FRESH_SECONDS", 0.0)
    assert adapter("aws").sweep(["t1"]) == [], "a task that goes on is to find out by itself"
    (told,) = eventually(lambda: adapter("aws").sweep([], dry_run=True), timeout=SECONDS, every=0.2)
    assert groups(aws.box)
    swept: list[str] = []

    def none_left() -> bool:
        # EC2 may fail to remove it, or list it late: the next look sees to that.
        swept.extend(adapter("aws").sweep([]))
        return groups(aws.box) == []

    eventually(none_left, timeout=SECONDS, every=0.2)
    assert set(swept) == {told}
    assert adapter("aws").sweep([]) == []


@ONE_FAULT
def test_a_machine_that_never_boots_is_given_up_in_time(aws: Client) -> None:
    aws.settings('boot_timeout = "4s"')
    aws.box.aws.boots("runs", "never")
    said = str(aws.refused(aws.intent()))
    assert "was not ready within" in said
    assert "boot_timeout" in said
    assert aws.alive() == []
    aws.end()


def test_the_machine_that_never_boots_is_named_and_not_one_that_waits_for_it(aws: Client) -> None:
    aws.settings('boot_timeout = "8s"')
    aws.box.aws.boots("runs", "never")
    intent = aws.intent()
    aws.waiting(intent, "1 of 2 nodes are still starting")
    (booting,) = eventually(lambda: of_state(aws, "pending", but="running"), timeout=SECONDS)
    said = str(aws.refused(intent))
    assert re.match(rf"{booting} was not ready within \d+ s: nothing answers at ", said), said
    aws.end()


# After a throttled request all zones are asked again, the first one too.
@ONE_FAULT
def test_room_that_was_none_after_all_leads_to_the_next_zone(aws: Client) -> None:
    aws.box.aws.boots("never")
    intent = aws.intent(spot=True, num_instances=1)
    aws.waiting(intent, "still starting")
    (first,) = aws.alive()
    aws.box.aws.preempt([first["id"]], 0.0)
    eventually(lambda: not aws.alive(), timeout=SECONDS)
    # Whoever looks meanwhile does not take the launch for over.
    assert adapter("aws").list_instances("t1")
    (found,) = aws.launch(intent)
    assert found.id != first["id"]
    assert found.data["zone"] != first["zone"]
    aws.end()


# Other homes, other addresses


def test_what_another_home_has_launched_is_shown_as_such(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine,) = aws.launch(aws.intent(num_instances=1, max_run_time_hours=1.0))
    monkeypatch.setenv("FLOW_HOME", str(tmp_path))
    provider = adapter("aws")
    assert provider.list_instances() == []
    (other,) = provider.others()
    assert other.id == mine.id
    assert other.task_id == "t1"
    assert "@" in str(other.data["owner"])
    assert time.time() < float(other.data["deadline"]) < time.time() + 4 * 3600
    # A new machine with an empty store can end it.
    provider.terminate([other])
    eventually(lambda: provider.others() == [], timeout=SECONDS, every=0.1)
    assert aws.alive() == []


def test_machines_of_another_home_are_overdue_by_the_wall_clock_alone(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(home: Path, seconds: float) -> None:
        # As after a pause of a virtual machine, or a wrong time at its start: set right when no task runs.
        offset = time.time() - clock.since_boot() + seconds
        (home / clock.FILE).write_text(json.dumps({"boot": clock.boot(), "offset": offset}))

    differ(aws.home, -86400.0)
    (mine,) = aws.launch(aws.intent(num_instances=1, max_run_time_hours=1.0))
    differ(tmp_path, 86400.0)
    monkeypatch.setenv("FLOW_HOME", str(tmp_path))

    def looked() -> Reconciled | None:
        """What a look finds. EC2's lists lag, so that a machine that has just begun may be in none yet."""
        found = reconcile(Store(tmp_path / "state.db"), tmp_path, here=settings_here)
        return found if found.others else None

    found = eventually(looked, timeout=SECONDS, every=0.1)
    (other,) = found.others
    assert (other["id"], other["ended"]) == (mine.id, False)
    assert any("ends by itself in" in line for line in found.lines())
    assert [each["id"] for each in aws.alive()] == [mine.id]
    adapter("aws").terminate(adapter("aws").others())


@ONE_FAULT
def test_ssh_is_let_in_again_from_where_the_client_has_moved_to(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provider_adapters.aws import network

    (instance,) = aws.launch(aws.intent(num_instances=1))
    before = aws.calls("AuthorizeSecurityGroupIngress")
    assert adapter("aws").answers_beside([instance]).startswith("EC2")
    assert aws.calls("AuthorizeSecurityGroupIngress") == before
    monkeypatch.setattr(network, "own_address", lambda endpoint: "198.51.100.77")
    for _ in range(2):
        adapter("aws").answers_beside([instance])
    added = aws.calls("AuthorizeSecurityGroupIngress")[len(before) :]
    assert any("198.51.100.77/32" in each.values() for each in added)
    # Once is enough.
    assert len([each for each in added if "198.51.100.77/32" in each.values()]) <= 2
    aws.end()


@ONE_FAULT
def test_ssh_is_let_in_from_where_the_client_has_moved_to_while_machines_boot(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provider_adapters.aws import booting, network

    monkeypatch.setattr(booting, "_STILL_THERE_SECONDS", 1.0)
    monkeypatch.setattr(network, "_ADDRESS_EVERY_SECONDS", 1.0)
    intent = aws.intent(num_instances=1)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(network, "own_address", lambda endpoint: "198.51.100.77")
        # The box drops what the group does not admit.
        aws.waiting(intent, "nothing answers")
    aws.launch(intent)
    aws.end()


@SLOW
@ONE_FAULT
def test_ssh_is_let_in_from_every_address_however_often_the_client_moves(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A security group has room for 60 rules."""
    from provider_adapters.aws import network

    monkeypatch.setattr(network, "_ADDRESS_EVERY_SECONDS", 0.0)
    (instance,) = aws.launch(aws.intent(num_instances=1))
    provider = adapter("aws")
    for number in range(65):
        now = f"198.51.100.{number}"
        monkeypatch.setattr(network, "own_address", lambda endpoint, address=now: address)
        provider.answers_beside([instance])
    (group,) = groups_made("us-east-1")
    rules = group["IpPermissions"]
    admitted = [each["CidrIp"] for rule in rules for each in rule.get("IpRanges", ())]
    # Those of this morning, too: people come home in the evening.
    assert {f"198.51.100.{number}/32" for number in range(50, 65)} <= {*admitted}
    aws.end()


def test_a_placement_group_and_efa_are_made_and_removed(aws: Client) -> None:
    aws.settings("public_ip = false")
    intent = aws.intent(gpu="a100:8", internode_interconnect="EFA", num_instances=2)
    aws.waiting(intent, "still starting")
    assert aws.box.aws.leftovers()["placement groups"] == ["flowlite-t1"]
    (sent, *_) = aws.launches().values()
    assert sent["Placement.GroupName"] == "flowlite-t1"
    kinds = [v for k, v in sent.items() if k.endswith("InterfaceType")]
    assert kinds == ["efa-only"] * 4
    aws.end()
    assert groups(aws.box) == []


def test_a_reservation_is_used_in_its_zone(aws: Client) -> None:
    name = aws.box.aws.reserve(TYPE, "us-east-1d", 2)
    aws.settings(f'capacity_reservation = "{name}"')
    found = aws.launch(aws.intent())
    assert {each.data["zone"] for each in found} == {"us-east-1d"}
    (sent, *_) = aws.launches().values()
    assert name in sent.values()
    aws.end()


@pytest.mark.parametrize("state", ["scheduled", "expired"])
def test_a_block_that_is_not_active_is_refused(aws: Client, state: str) -> None:
    name = aws.box.aws.reserve(TYPE, "us-east-1d", 2, block=True, state=state)
    aws.settings(f'capacity_block = "{name}"')
    with pytest.raises(ConfigError, match=rf"capacity block {name} is {state}"):
        aws.intent()


def test_a_run_in_a_block_ends_with_notice_before_the_block_does(aws: Client) -> None:
    name = aws.box.aws.reserve(TYPE, "us-east-1d", 2, block=True, ends_in=3600.0)
    aws.settings(f'capacity_block = "{name}"')
    intent = aws.intent()
    plan = Plan.from_json(intent.plan)
    assert any("the capacity block ends at" in note for note in plan.notes)
    assert plan.max_run_seconds is not None
    assert 3600.0 - 35 * 60 - SECONDS < plan.max_run_seconds <= 3600.0 - 35 * 60
    capped = Plan.from_json(aws.intent(max_run_time_hours=0.1).plan)
    assert capped.max_run_seconds == 360.0
    found = aws.launch(intent)
    (sent, *_) = aws.launches().values()
    assert sent["InstanceMarketOptions.MarketType"] == "capacity-block"

    how = adapter("aws").node_settings(plan, found[0]).preemption
    assert how is not None
    # Asked to stop 37 minutes before the end, gone 35 minutes before it.
    assert 0 < how["after"] <= 3600.0 - 37 * 60
    assert how["notice"] == 120.0
    aws.end()


def test_a_block_with_no_time_left_is_refused(aws: Client) -> None:
    name = aws.box.aws.reserve(TYPE, "us-east-1d", 2, block=True, ends_in=3600.0)
    aws.settings(f'capacity_block = "{name}"')
    intent = aws.intent()
    intent.plan["options"]["reservation_ends"] = time.time() + 36 * 60
    with pytest.raises(ConfigError, match="EC2 ends its machines from 30 minutes before"):
        adapter("aws").launch(intent)
    assert aws.calls("RunInstances") == []
    short = aws.box.aws.reserve(TYPE, "us-east-1d", 2, block=True, ends_in=1800.0)
    aws.settings(f'capacity_block = "{short}"')
    with pytest.raises(ConfigError, match="EC2 ends its machines from 30 minutes before"):
        aws.intent()


@ONE_FAULT
def test_subnets_without_a_way_out_are_refused_before_anything_is_paid(aws: Client) -> None:
    import boto3

    ec2 = boto3.client("ec2")
    (table,) = ec2.describe_route_tables()["RouteTables"]
    ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")
    with pytest.raises(ConfigError, match="leads to no internet gateway"):
        aws.intent()

    # One subnet with a route table of its own: only its zone is left.
    subnet = next(
        each
        for each in ec2.describe_subnets()["Subnets"]
        if each["AvailabilityZone"] == "us-east-1c"
    )
    (gateway,) = ec2.describe_internet_gateways()["InternetGateways"]
    own = ec2.create_route_table(VpcId=subnet["VpcId"])["RouteTable"]["RouteTableId"]
    ec2.create_route(
        RouteTableId=own,
        DestinationCidrBlock="0.0.0.0/0",
        GatewayId=gateway["InternetGatewayId"],
    )
    ec2.associate_route_table(RouteTableId=own, SubnetId=subnet["SubnetId"])
    # What was refused is asked for again, since somebody may have added the route.
    (place,) = Plan.from_json(aws.intent().plan).options["places"]
    assert [zone["zone"] for zone in place["zones"]] == ["us-east-1c"]

    # Private machines boot without one; the plan says what they will lack.
    aws.settings("public_ip = false")
    forget_subnets(aws)
    notes = Plan.from_json(aws.intent().plan).notes
    assert any("no way out to the internet" in note for note in notes)


@ONE_FAULT
def test_a_subnet_without_ipv4_is_refused_before_anything_is_paid(aws: Client) -> None:
    import boto3

    ec2 = boto3.client("ec2")
    asked = {"CidrBlock": "10.8.0.0/16", "AmazonProvidedIpv6CidrBlock": True}
    vpc = ec2.create_vpc(**asked)["Vpc"]
    block = vpc["Ipv6CidrBlockAssociationSet"][0]["Ipv6CidrBlock"].replace("/56", "/64")
    where = {"VpcId": vpc["VpcId"], "AvailabilityZone": "us-east-1b"}
    made = ec2.create_subnet(**where, Ipv6CidrBlock=block, Ipv6Native=True)["Subnet"]["SubnetId"]
    aws.settings(f'subnet = "{made}"\npublic_ip = false')
    with pytest.raises(ConfigError, match=f"{made} has no IPv4 addresses"):
        aws.intent()


@ONE_FAULT
def test_a_network_of_dedicated_machines_needs_a_price(aws: Client) -> None:
    import boto3

    ec2 = boto3.client("ec2")
    made = ec2.create_vpc(CidrBlock="10.9.0.0/16", InstanceTenancy="dedicated")["Vpc"]["VpcId"]
    asked = {"VpcId": made, "CidrBlock": "10.9.1.0/24", "AvailabilityZone": "us-east-1b"}
    subnet = ec2.create_subnet(**asked)["Subnet"]["SubnetId"]
    aws.settings(f'subnet = "{subnet}"\npublic_ip = false')
    with pytest.raises(ConfigError, match=f"{made}.* dedicated ones.* 'c7i.large' = "):
        aws.intent()
    aws.settings(f'subnet = "{subnet}"\npublic_ip = false\n[aws.prices]\n"c7i.large" = 2.1')
    assert Plan.from_json(aws.intent().plan).price_per_hour == 2.1


def forget_subnets(aws: Client) -> None:
    """Has the next plan ask EC2 for subnets and routes again."""
    for path in (aws.home / "aws" / "catalog").iterdir():
        known = json.loads(path.read_bytes())
        path.write_text(json.dumps({k: v for k, v in known.items() if "subnets" not in k}))


def test_gc_removes_the_group_of_a_launch_that_never_was(aws: Client) -> None:
    aws.box.aws.fault("RunInstances", code="InvalidParameterValue")
    assert "InvalidParameterValue" in str(aws.refused(aws.intent()))
    assert groups(aws.box) == ["flowlite-t1"]
    (aws.home / "aws" / "launches" / "t1-launch-1.json").unlink()
    eventually(
        lambda: adapter("aws").list_instances() == [] and groups(aws.box) == [], timeout=SECONDS
    )


def test_warm_offers_ask_nobody(aws: Client) -> None:
    adapter("aws").offers("h100:8", 4)
    before = len(aws.box.aws.calls)
    found = adapter("aws").offers("h100:8", 4)
    assert len(aws.box.aws.calls) == before
    assert [(each.spot, each.instance_type) for each in found] == [
        (True, "p5.48xlarge"),
        (False, "p5.48xlarge"),
    ]


def test_nothing_is_asked_where_nobody_uses_aws(
    aws: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (aws.home / "config.toml").unlink()
    provider = adapter("aws")
    assert provider.list_instances() == []
    assert provider.others() == []
    assert provider.list_volumes() == []
    assert aws.box.aws.calls == []


class Subject(ProviderUnderTest):
    """Only to launch from another process."""

    name = "aws"

    def make(self) -> Provider:
        return adapter("aws")

    def kill(self, instance: Instance) -> None:
        raise NotImplementedError


# What is no "no"


@ONE_FAULT
@pytest.mark.parametrize("action", ["DescribeInstances", "CreateSecurityGroup"])
@pytest.mark.parametrize(
    "fault",
    [{"code": "Unavailable", "status": 503}, {"hang": 0.05}, {"code": "RequestLimitExceeded"}],
    ids=["fault of EC2", "no network", "throttled"],
)
def test_what_is_no_answer_is_waited_for(
    aws: Client, monkeypatch: pytest.MonkeyPatch, action: str, fault: dict[str, Any]
) -> None:
    # boto3's own tries, which take seconds, are over at once.
    monkeypatch.setattr(session, "_TRIES", 1)
    aws.box.aws.fault(action, times=4, **fault)
    found = aws.launch(aws.intent())
    assert {each["id"] for each in aws.alive()} == {each.id for each in found}
    aws.end()


@ONE_FAULT
def test_the_pauses_grow_while_nothing_answers(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_TRIES", 1)
    aws.box.aws.fault("CreateSecurityGroup", code="Unavailable", status=503, times=3)
    intent, pauses = aws.intent(), []
    for _ in range(3):
        with pytest.raises(LaunchPending, match="asked again") as caught:
            adapter("aws").launch(intent)
        pauses.append(caught.value.retry_after)
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * pauses[0]


@ONE_FAULT
def test_machines_that_nobody_can_see_are_ended_when_the_boot_time_is_over(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_TRIES", 1)
    # Long enough for a first look on a busy machine, so that it is known what cannot be seen.
    aws.settings('boot_timeout = "12s"')
    aws.box.aws.timing(boot=600.0)
    aws.box.aws.fault("DescribeInstances", code="Unavailable", status=503, times=1000)
    said = str(aws.refused(aws.intent()))
    assert "Unavailable" in said
    assert "[aws] boot_timeout" in said
    eventually(lambda: aws.alive() == [], timeout=SECONDS, every=0.2)
    aws.box.aws.clear_faults()
    aws.end()


@ONE_FAULT
@pytest.mark.parametrize("what", ["AWS", "the machines"])
def test_machines_that_came_while_the_lid_was_closed_are_not_ended_before_the_network_is_back(
    aws: Client, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Their boot time is over then, and a laptop that has just woken up reaches nothing for some seconds."""
    monkeypatch.setattr(session, "_TRIES", 1)
    intent, provider = aws.intent(num_instances=1), adapter("aws")
    if what == "the machines":
        aws.box.aws.timing(boot=8.0)
    with closed_lid() as lid:

        def pending() -> str:
            with pytest.raises(LaunchPending) as caught:
                provider.launch(intent)
            return str(caught.value)

        eventually(lambda: "still starting" in pending(), timeout=SECONDS)
        if what == "AWS":
            aws.box.aws.fault("DescribeInstances", code="Unavailable", status=503, times=1000)
        lid.slept = 1500.0
        assert "starting" in pending() or "asked again" in pending()
        aws.box.aws.clear_faults()

        def found() -> list[Instance]:
            try:
                return provider.launch(intent)
            except LaunchPending:
                return []

        assert len(eventually(found, timeout=SECONDS, every=0.1)) == 1
    aws.end()


# What is made, and not known everywhere yet


@pytest.mark.parametrize("seconds", [2.0, 4.0])
def test_a_group_that_is_not_known_everywhere_yet_is_waited_for(
    aws: Client, seconds: float
) -> None:
    aws.box.aws.timing(unknown=seconds)
    aws.launch(aws.intent())
    assert len(aws.calls("CreateSecurityGroup")) > 1, "it was never unknown"
    assert len(groups(aws.box)) == 1
    aws.end()


@pytest.mark.parametrize(
    "action", ["AuthorizeSecurityGroupIngress", "AuthorizeSecurityGroupEgress", "RunInstances"]
)
def test_every_call_that_names_a_group_may_not_know_it(aws: Client, action: str) -> None:
    aws.box.aws.fault(action, code="InvalidGroup.NotFound", status=400, times=2)
    aws.launch(aws.intent())
    aws.end()


def test_a_group_that_stays_unknown_fails_the_launch(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_KNOWN_SECONDS", 1.0)
    aws.box.aws.timing(unknown=1000.0)
    assert re.search(r"not known everywhere|not listed", str(aws.refused(aws.intent())))
    assert aws.alive() == []


def test_a_supervisor_that_takes_over_while_the_listing_lags_knows_its_machines(
    aws: Client,
) -> None:
    intent = aws.intent()
    launched = aws.launch(intent)
    aws.box.aws.lag(600.0)
    listed = adapter("aws").list_instances("t1")
    assert [(each.id, each.state, each.address) for each in listed] == [
        (each.id, "running", each.address) for each in launched
    ]
    plan = Plan.from_json(intent.plan)
    for before, now in zip(launched, listed, strict=True):
        assert adapter("aws").node_settings(plan, now) == adapter("aws").node_settings(plan, before)
        with adapter("aws").connect(now) as connection:
            assert connection.run(["true"]).code == 0
    aws.box.aws.lag(0.0)
    aws.end()


def test_whoever_asks_again_after_a_refusal_by_quota_is_asked_for(aws: Client) -> None:
    aws.box.aws.fault("RunInstances", code="MaxSpotInstanceCountExceeded", status=400)
    intent = aws.intent()
    assert isinstance(aws.refused(intent), QuotaExceeded)
    before = len(aws.launches())
    aws.launch(intent)
    assert len(aws.launches()) > before
    aws.end()
