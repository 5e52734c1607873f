"""Launches on EC2 in the box that are content with fewer machines than they ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.errors import CapacityUnavailable, QuotaExceeded
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from provider_adapters.aws.listing import Listing
from provider_adapters.rented.ledger import Ledger
from tests.helpers import eventually
from tests.providers.aws_client import SECONDS, TYPE, ZONES, Client

pytestmark = pytest.mark.timeout(900)
# Another fault than the one that is set changes which requests are made, or what the first answer is.
ONE_FAULT = pytest.mark.no_random_faults
QUOTA = "L-1216C47A"


def elastic(
    aws: Client, fewest: int, most: int, *, number: int = 1, **options: Any
) -> LaunchIntent:
    intent = aws.intent(number=number, num_instances=(fewest, most), **options)
    return dataclasses.replace(intent, least=fewest)


def room(aws: Client, *counts: int) -> None:
    """So many machines in the zones, in their order; none in the others."""
    for zone, count in zip(ZONES, (*counts, *[0] * len(ZONES)), strict=False):
        aws.box.aws.capacity(TYPE, zone, count)


def asked(aws: Client) -> list[tuple[str, int, int]]:
    """What each zone was asked for: the fewest and the most machines."""
    return [
        (each["Placement.AvailabilityZone"][-1], int(each["MinCount"]), int(each["MaxCount"]))
        for each in aws.launches().values()
    ]


@ONE_FAULT
def test_a_zone_with_room_for_all_is_found(aws: Client) -> None:
    room(aws, 2, 3, 4)
    found = aws.launch(elastic(aws, 2, 4))
    assert {each.data["zone"] for each in found} == {"us-east-1c"}
    assert len(found) == len(aws.alive()) == 4
    assert asked(aws) == [("a", 4, 4), ("b", 4, 4), ("c", 4, 4)]
    aws.end()


@ONE_FAULT
def test_without_room_for_all_it_is_content_with_what_a_zone_has(aws: Client) -> None:
    room(aws, 1, 3)
    intent = elastic(aws, 2, 4)
    found = aws.launch(intent)
    assert {each.data["zone"] for each in found} == {"us-east-1b"}
    assert len(found) == len(aws.alive()) == 3
    there = {each[0] for each in asked(aws)}
    assert {each[1:] for each in asked(aws)[: len(there)]} == {(4, 4)}
    # Those that have just refused come last.
    assert {each[1:] for each in asked(aws)[len(there) :]} == {(2, 4)}
    assert {each.launch for each in adapter("aws").list_instances("t1")} == {intent.token}
    # There is more room now, and the same token is the same machines.
    room(aws, 9, 9)
    again = aws.launch(intent)
    assert [each.id for each in again] == [each.id for each in found]
    # More machines are another launch, beside the others.
    more = aws.launch(elastic(aws, 1, 1, number=2))
    assert [each.data["zone"] for each in more] == ["us-east-1b"]
    assert len(aws.alive()) == 4
    aws.end()


@ONE_FAULT
def test_with_too_little_room_there_is_nothing_until_there_is_some(aws: Client) -> None:
    room(aws, 1, 1)
    intent = elastic(aws, 2, 4)
    refused = aws.refused(intent)
    assert isinstance(refused, CapacityUnavailable)
    assert "no room for 2 × c7i.large" in str(refused)
    assert aws.alive() == []
    assert adapter("aws").list_instances("t1") == []
    room(aws, 0, 0, 8)
    assert len(aws.launch(intent)) == 4
    aws.end()


@ONE_FAULT
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_is_settled_by_the_same_request(aws: Client, when: str) -> None:
    room(aws, 3)
    # The first calls are those for all machines.
    zones = len(elastic(aws, 2, 4).plan["options"]["places"][0]["zones"])
    aws.box.aws.fault("RunInstances", code="InternalError", status=500, when=when, skip=zones)
    found = aws.launch(elastic(aws, 2, 4))
    assert len(found) == 3
    assert {each["id"] for each in aws.alive()} == {each.id for each in found}
    assert len(aws.launches()) == zones + 1
    assert len(aws.calls("RunInstances")) == zones + 2
    aws.end()


@ONE_FAULT
def test_a_listing_that_shows_only_some_of_them_is_not_believed(
    aws: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose answer was lost has created three machines, and the listing shows one at first."""
    monkeypatch.setattr(Listing, "of_token", _only_first(Listing.of_token))
    aws.settings('lease = "10m"\nlisting_lag = "1h"')
    room(aws, 3)
    zones = len(elastic(aws, 2, 4).plan["options"]["places"][0]["zones"])
    aws.box.aws.fault(
        "RunInstances", code="InternalError", status=500, when="after", skip=zones, times=1
    )
    intent = elastic(aws, 2, 4)
    with pytest.raises(LaunchPending, match="not known"):
        adapter("aws").launch(intent)
    provider = adapter("aws")
    unconfirmed = [each for each in provider.list_instances("t1") if each.unconfirmed]
    assert len(unconfirmed) == 1, "it may have created more than the listing shows"
    assert len(aws.launch(intent)) == 3
    assert len(aws.alive()) == 3
    aws.end()


def _only_first(of_token: Any) -> Any:
    def listed(listing: Listing, region: str, client_token: str) -> list[Instance]:
        found: list[Instance] = of_token(listing, region, client_token)[:1]
        return found

    return listed


@ONE_FAULT
def test_the_quota_bounds_what_is_asked_for(aws: Client) -> None:
    # A machine has two vCPUs.
    aws.box.aws.quota(QUOTA, 7)
    found = aws.launch(elastic(aws, 2, 8))
    assert len(found) == 3
    assert asked(aws) == [("a", 3, 3)]
    aws.end()


@ONE_FAULT
def test_a_quota_that_is_used_up_in_part_leaves_room_for_the_fewest(aws: Client) -> None:
    aws.box.aws.quota(QUOTA, 8)
    first = aws.launch(elastic(aws, 2, 2))
    found = aws.launch(elastic(aws, 1, 3, number=2))
    assert len(found) == 1
    assert asked(aws)[1:] == [("a", 3, 3), ("a", 1, 1)]
    assert len(aws.alive()) == len(first) + 1
    aws.end()


@ONE_FAULT
def test_a_quota_that_is_too_small_for_the_fewest_is_said(aws: Client) -> None:
    aws.box.aws.quota(QUOTA, 3)
    refused = aws.refused(elastic(aws, 2, 4))
    assert isinstance(refused, QuotaExceeded)
    assert "2 × c7i.large are 4 vCPUs" in str(refused)
    assert not aws.calls("RunInstances")


@ONE_FAULT
@pytest.mark.parametrize(("fewest", "launches"), [(2, 1), (3, 2)])
def test_a_machine_that_is_taken_back_while_it_boots(
    aws: Client, fewest: int, launches: int
) -> None:
    """The others are handed out if they are enough. If not, they end, and all are asked for again."""
    aws.box.aws.timing(boot=8.0)
    intent = elastic(aws, fewest, 3, spot=True)
    aws.waiting(intent, "starting")
    first = {each["id"] for each in aws.alive()}
    taken = min(first)
    aws.box.aws.preempt([taken], 0.0)
    eventually(lambda: taken not in {each["id"] for each in aws.alive()}, timeout=SECONDS)
    aws.box.aws.timing(boot=0.3)
    found = {each.id for each in aws.launch(intent)}
    assert {each["id"] for each in aws.alive()} == found
    assert len(found) == fewest
    assert len(aws.launches()) == launches
    assert (found < first) == (launches == 1)
    # The same token is the same machines, also after this, and when EC2 has forgotten the one that it has taken.
    assert {each.id for each in aws.launch(intent)} == found
    launch = Ledger(aws.home / "aws" / "launches").read(intent.token)
    assert launch is not None
    assert launch.notes.get("taken") == ([taken] if launches == 1 else None)
    aws.end()


@ONE_FAULT
def test_the_zone_that_has_taken_a_machine_back_says_so_where_there_is_no_room(aws: Client) -> None:
    room(aws, 2)
    aws.box.aws.timing(boot=8.0)
    intent = aws.intent(spot=True)
    aws.waiting(intent, "starting")
    taken = min(each["id"] for each in aws.alive())
    room(aws, 0)
    aws.box.aws.preempt([taken], 0.0)
    refused = aws.refused(intent)
    assert isinstance(refused, CapacityUnavailable)
    assert f"us-east-1a: EC2 has taken {taken} back: Server.SpotInstanceTermination" in str(refused)
    assert "None" not in str(refused)
    aws.box.aws.timing(boot=0.3)
    room(aws, 2)
    aws.launch(intent)
    aws.end()
