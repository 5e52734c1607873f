"""What a launch leaves beside its machines is removed in the end: in every region, whatever EC2 refuses at first."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.errors import CapacityUnavailable, PermissionRefused, ProviderError
from flowlite.provider import LaunchIntent, LaunchPending
from flowlite.supervise.cleanup.reconcile import reconcile
from provider_adapters.rented.ledger import Ledger
from tests.helpers import eventually
from tests.providers.aws_client import SECONDS, TYPE, ZONES, Client, groups_in

pytestmark = pytest.mark.timeout(900)
TWO_REGIONS = 'region = ["us-east-1", "us-west-2"]'


def groups_left(aws: Client) -> list[str]:
    """Groups of tasks in all regions, of both kinds."""
    found = list(aws.box.aws.leftovers()["placement groups"])
    return found + groups_in("us-east-1") + groups_in("us-west-2")


def gone_after_another_look(aws: Client) -> bool:
    """Whether nothing is left after `flow gc`, or the tidying in the background, has looked again."""
    adapter("aws").list_instances()
    return groups_left(aws) == []


def test_a_security_group_in_the_second_region_goes_when_ec2_lets_it_go(aws: Client) -> None:
    aws.settings(TWO_REGIONS)
    for zone in ZONES:
        aws.box.aws.capacity(TYPE, zone, 0)
    found = aws.launch(aws.intent())
    assert {each.data["region"] for each in found} == {"us-west-2"}
    aws.box.aws.fault("DeleteSecurityGroup", code="DependencyViolation", times=2)
    aws.end_machines()
    # Each region that was asked has one. EC2 forgets the machines before the group of either is gone.
    aws.box.aws.forget_ended()
    eventually(lambda: gone_after_another_look(aws))
    # Two refusals, and one of each region that was not refused.
    assert len(aws.calls("DeleteSecurityGroup")) >= 4
    launches = Ledger(aws.home / "aws" / "launches").launches(everywhere=True)
    assert all(launch.ended for launch in launches)


@pytest.mark.all_regions
def test_machines_of_a_ledger_that_is_lost_are_found_in_all_regions(aws: Client) -> None:
    from flowlite.api.session import open_session

    found = aws.launch(aws.intent(region="us-west-2"))
    # As in a FLOW_HOME that was restored from a copy.
    for path in (aws.home / "aws" / "launches").iterdir():
        path.unlink()
    session = open_session()
    left = reconcile(session.store, session.home, providers=["aws"], here=settings_here)
    assert {each["id"] for each in left.unknown} == {each.id for each in found}
    assert left.others == []
    left = reconcile(
        session.store, session.home, providers=["aws"], here=settings_here, unknown=True
    )
    assert all(each["ended"] for each in left.unknown)
    eventually(lambda: aws.alive() == [])


@pytest.mark.no_random_faults
def test_a_region_in_which_nothing_can_be_ended_does_not_keep_others_from_it(aws: Client) -> None:
    first = aws.launch(aws.intent("t1", num_instances=1))
    second = aws.launch(aws.intent("t2", num_instances=1, region="us-west-2"))
    match = {"Region": "us-east-1"}
    aws.box.aws.fault("TerminateInstances", code="UnauthorizedOperation", times=-1, match=match)

    def only_the_second_one_ends() -> bool:
        # Again, since EC2 may not know a new machine yet.
        with pytest.raises(PermissionRefused, match="us-east-1"):
            adapter("aws").terminate([*first, *second])
        return [each["id"] for each in aws.alive()] == [each.id for each in first]

    eventually(only_the_second_one_ends)
    aws.box.aws.clear_faults()
    aws.end_machines()
    assert aws.alive() == []


@pytest.mark.no_random_faults
def test_machines_that_may_not_be_ended_do_not_keep_the_others_of_their_gang_running(
    aws: Client,
) -> None:
    found = aws.launch(aws.intent(num_instances=4))
    kept = [each.id for each in found[:2]]

    def protect(protected: bool) -> None:
        ec2 = boto3.client("ec2", "us-east-1")
        for name in kept:
            ec2.modify_instance_attribute(
                InstanceId=name, DisableApiTermination={"Value": protected}
            )

    protect(True)
    with pytest.raises(ProviderError, match=rf"{kept[0]}|{kept[1]}.*disableApiTermination"):
        adapter("aws").terminate(found)
    assert {each["id"] for each in aws.alive()} == {*kept}
    protect(False)
    aws.end()


def test_a_placement_group_goes_when_ec2_lets_it_go(aws: Client) -> None:
    aws.settings("placement_group = true")
    aws.launch(aws.intent())
    aws.box.aws.fault("DeletePlacementGroup", code="InvalidPlacementGroup.InUse", times=2)
    aws.end_machines()
    eventually(lambda: gone_after_another_look(aws))
    assert len(aws.calls("DeletePlacementGroup")) >= 3


@pytest.mark.parametrize("by", ["list", "sweep"])
def test_groups_of_which_no_ledger_knows_are_found_by_their_tags(aws: Client, by: str) -> None:
    aws.settings("placement_group = true")
    aws.launch(aws.intent())
    aws.box.aws.fault("DeletePlacementGroup", code="InvalidPlacementGroup.InUse", times=-1)
    aws.box.aws.fault("DeleteSecurityGroup", code="DependencyViolation", times=-1)
    aws.end_machines()
    assert sorted(groups_left(aws)) == ["flowlite-t1", "flowlite-t1"]
    aws.box.aws.clear_faults()
    (aws.home / "aws" / "launches" / "t1-launch-1.json").unlink()
    if by == "sweep":
        told = adapter("aws").sweep([], dry_run=True)
        assert sorted(told) == [
            "aws placement group flowlite-t1 in us-east-1",
            "aws security group flowlite-t1 in us-east-1",
        ]
        swept: set[str] = set()

        def all_swept() -> bool:
            swept.update(adapter("aws").sweep([]))
            return swept == set(told)

        eventually(all_swept, timeout=SECONDS, every=0.2)
        assert groups_left(aws) == []
    eventually(lambda: gone_after_another_look(aws), timeout=SECONDS)


@pytest.mark.parametrize("room", ["none", "refused"])
def test_the_groups_of_a_launch_without_machines_go_with_its_task(aws: Client, room: str) -> None:
    aws.settings(TWO_REGIONS)
    intent = aws.intent()
    if room == "none":
        for region in ("us-east-1", "us-west-2"):
            for letter in "abcdef":
                aws.box.aws.capacity(TYPE, f"{region}{letter}", 0)
        eventually(lambda: is_full(aws, intent), timeout=SECONDS, every=0.1)
        assert len(groups_left(aws)) == 2
    else:
        aws.box.aws.fault("RunInstances", code="InvalidPlacementGroup.Unknown", times=-1)
        aws.settings(f'{TWO_REGIONS}\nplacement_group = "mine"')
        aws.refused(aws.intent())
        assert groups_left(aws)
    # What looks at it meanwhile leaves them to the launch.
    adapter("aws").list_instances("t1")
    assert groups_left(aws)

    def cleared() -> bool:
        adapter("aws").clear("t1")
        return groups_left(aws) == []

    eventually(cleared, timeout=SECONDS, every=0.2)
    launches = Ledger(aws.home / "aws" / "launches").launches(everywhere=True)
    assert all(launch.ended for launch in launches)


def is_full(aws: Client, intent: LaunchIntent) -> bool:
    """Whether no region had room for a launch. As the supervisor does, it asks again while EC2 has not answered."""
    try:
        adapter("aws").launch(intent)
    except CapacityUnavailable:
        return True
    except LaunchPending:
        return False
    raise AssertionError("it was launched")


def test_machines_keep_their_groups_when_their_task_has_no_more_launches(aws: Client) -> None:
    found = aws.launch(aws.intent())
    adapter("aws").clear("t1")
    assert groups_left(aws) == ["flowlite-t1"]
    assert {each["id"] for each in aws.alive()} == {each.id for each in found}
    aws.end()


def left_alone_in_the_second_region(aws: Client) -> None:
    """A group in us-west-2, whose machines have ended, and of which this FLOW_HOME knows nothing any more."""
    aws.settings('region = "us-west-2"')
    aws.launch(aws.intent())
    aws.box.aws.fault("DeleteSecurityGroup", code="DependencyViolation", times=-1)
    aws.end_machines()
    aws.box.aws.clear_faults()
    (aws.home / "aws" / "launches" / "t1-launch-1.json").unlink()
    aws.settings('region = "us-east-1"')
    assert groups_left(aws) == ["flowlite-t1"]


def test_a_group_in_a_region_that_nothing_names_any_more_is_found(aws: Client) -> None:
    left_alone_in_the_second_region(aws)

    def swept() -> bool:
        told = adapter("aws").sweep([])
        assert set(told) <= {"aws security group flowlite-t1 in us-west-2"}
        return groups_left(aws) == []

    eventually(swept, timeout=SECONDS, every=0.2)


def test_groups_of_another_home_go_when_that_is_asked_for_and_no_machine_has_them(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_alone_in_the_second_region(aws)
    aws.launch(aws.intent("t2"))
    monkeypatch.setenv("FLOW_HOME", str(tmp_path))
    # Neither has a deadline.
    assert adapter("aws").sweep([], dry_run=True) == []
    told = "aws security group flowlite-t1 in us-west-2"
    eventually(lambda: adapter("aws").sweep_others(dry_run=True) == [told], timeout=SECONDS)

    def swept() -> bool:
        adapter("aws").sweep_others()
        return groups_left(aws) == ["flowlite-t2"]

    eventually(swept, timeout=SECONDS, every=0.2)
    monkeypatch.setenv("FLOW_HOME", str(aws.home))
    aws.end("t2")


def fail(aws: Client, region: str, code: str) -> None:
    """Has a region refuse all that is listed there."""
    for action in ("DescribeInstances", "DescribeSecurityGroups", "DescribePlacementGroups"):
        match = {"Region": region}
        aws.box.aws.fault(action, code=code, times=-1, match=match)


def deny(aws: Client, region: str) -> None:
    """Has an organisation deny a region, as a service control policy does."""
    fail(aws, region, "UnauthorizedOperation")


# All regions are asked, several times: with failures and boto3's pauses after each that takes minutes.
@pytest.mark.no_random_faults
@pytest.mark.parametrize("code", ["UnauthorizedOperation", "ServiceUnavailable"])
def test_a_region_that_is_denied_or_fails_does_not_stop_the_others(
    aws: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    aws.launch(aws.intent())
    fail(aws, "eu-west-1", code)
    monkeypatch.setenv("FLOW_HOME", str(tmp_path))
    other = adapter("aws")
    assert len(other.others()) == 2
    assert other.sweep([]) == []
    (said,) = other.not_looked_at()
    assert said.startswith("eu-west-1: ")
    monkeypatch.setenv("FLOW_HOME", str(aws.home))
    aws.end()


def test_a_denied_region_is_named_once_by_gc(aws: Client, flow_home: Path) -> None:
    from flowlite.api.session import open_session

    aws.settings('region = ["us-east-1", "eu-west-1"]')
    deny(aws, "eu-west-1")
    session = open_session()
    found = reconcile(session.store, session.home, providers=["aws"], here=settings_here)
    assert [each for each in found.problems if "eu-west-1" in each] == found.problems
    assert len(found.problems) == 1


# Each call that fails is made five times, with boto3's pauses.
@pytest.mark.no_random_faults
def test_a_region_of_the_settings_that_does_not_answer_is_not_taken_for_empty(aws: Client) -> None:
    aws.settings('region = ["us-east-1", "eu-west-1"]')
    aws.launch(aws.intent())
    fail(aws, "eu-west-1", "ServiceUnavailable")
    with pytest.raises(ProviderError, match="eu-west-1"):
        adapter("aws").list_instances("t1")
    aws.box.aws.clear_faults()
    aws.end()


def test_the_region_of_a_launch_must_answer(aws: Client) -> None:
    aws.launch(aws.intent())
    deny(aws, "us-east-1")
    with pytest.raises(PermissionRefused):
        adapter("aws").list_instances("t1")
    aws.box.aws.clear_faults()
    aws.end()
