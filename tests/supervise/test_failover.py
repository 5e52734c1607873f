"""Which place is asked next: computed from the store, and the same for a supervisor that takes over."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.provider import Candidate, Plan
from flowlite.state.store import FullPlace, TaskRecord
from flowlite.supervise import failover
from flowlite.supervise.failover import Kind, PlaceFailed
from tests.test_store import task

PLACES = ("own", "near", "far")
NOW = 1000.0


def record(*, price: float = 2.0, places: tuple[str, ...] = PLACES) -> TaskRecord:
    plans = [Plan(name, "big", 2, 1, price_per_hour=price) for name in places]
    return task(
        "t1",
        plan=plans[0].to_json(),
        provider=places[0],
        candidates=[Candidate(plan).to_json() for plan in plans],
    )


def after(found: TaskRecord, kind: Kind, now: float = NOW, *, to: int | None = None) -> TaskRecord:
    """The task after its present place has failed and was left for the next one, or for the given one."""
    why = PlaceFailed("no", kind, 2, now - 1.0)
    failed = dataclasses.replace(found, tried=failover.with_failure(found, why, str(why), now))
    assert failover.is_leaving(failed)
    left = dataclasses.replace(failed, tried=failover.with_place_left(failed, now))
    assert not failover.is_leaving(left)
    following = failover.next_place(left, {}, now)
    candidate = (
        to if to is not None else left.candidate if following is None else following.candidate
    )
    return dataclasses.replace(left, candidate=candidate)


def test_the_places_are_asked_in_their_order_and_then_again_with_growing_pauses() -> None:
    found, now, asked, pauses = record(), NOW, [], []
    for _ in range(4 * len(PLACES)):
        asked.append(found.candidate)
        found = after(found, Kind.FULL, now)
        following = failover.next_place(found, {}, now)
        assert following is not None
        pauses.append(max(0.0, following.at - now))
        now = max(now, following.at)
    assert asked == [0, 1, 2] * 4
    assert pauses[:2] == [0.0, 0.0]
    rounds = [pauses[index] for index in (2, 5, 8)]
    assert rounds == sorted(rounds)
    assert 0.0 < rounds[0] < rounds[1]


def test_a_boot_that_fails_once_is_tried_again_there_and_a_second_one_is_not() -> None:
    once = after(record(), Kind.REFUSED)
    assert once.candidate == 0
    twice = after(once, Kind.REFUSED)
    assert twice.candidate == 1
    # Nor is it, when the others have no room.
    assert after(after(twice, Kind.FULL), Kind.FULL).candidate == 1


def test_a_place_that_refused_for_good_is_not_asked_again_in_this_search() -> None:
    found = record()
    for _ in PLACES:
        found = after(found, Kind.BARRED)
    assert failover.next_place(found, {}, NOW) is None
    another = dataclasses.replace(found, attempt=1)
    following = failover.next_place(another, {}, NOW)
    assert following is not None
    assert following.candidate == 0


def test_a_place_without_room_is_not_asked_by_another_task_for_some_minutes() -> None:
    found = record()
    name = failover.place_of(failover.plan_of(found, 0))
    full = {name: FullPlace(name, 2, "t0", NOW)}
    following = failover.next_place(found, full, NOW + 1.0)
    assert following is not None
    assert following.candidate == 1
    later = failover.next_place(found, full, NOW + failover.FULL_SECONDS)
    assert later is not None
    assert later.candidate == 0
    # There was no room for three nodes, and there may be for two; and asking an own host costs nothing.
    more = {name: FullPlace(name, 3, "t0", NOW)}
    for each, places in ((found, more), (record(price=0.0), full)):
        following = failover.next_place(each, places, NOW + 1.0)
        assert following is not None
        assert following.candidate == 0


def test_places_that_were_full_before_the_clock_was_set_right_are_asked() -> None:
    found = record()
    names = [failover.place_of(failover.plan_of(found, index)) for index in range(len(PLACES))]
    full = {name: FullPlace(name, 2, "t0", NOW + 8 * 3600.0) for name in names}
    following = failover.next_place(found, full, NOW)
    assert following is not None
    assert (following.candidate, following.at) == (0, 0.0)


def test_a_queue_is_waited_in_for_longer_each_time_it_comes_round() -> None:
    found = record(places=("slurm", "aws"))
    first = failover.queue_seconds(found)
    again = after(found, Kind.QUEUED, to=0)
    assert failover.queue_seconds(again) == 2 * first
    assert failover.queue_seconds(dataclasses.replace(again, attempt=1)) == first


def test_the_search_begins_when_nodes_were_asked_for_first() -> None:
    found = after(after(record(), Kind.FULL, NOW), Kind.FULL, NOW + 60.0)
    assert failover.began(found) == NOW - 1.0
    assert not failover.all_were_tried(found)
    assert failover.all_were_tried(after(found, Kind.FULL, NOW + 90.0))
    assert failover.report(found) == "own big: no; near big: no"
    # Another attempt searches anew.
    later = dataclasses.replace(found, attempt=found.attempt + 1)
    assert (failover.began(later), failover.report(later)) == (0.0, "")
    assert failover.came_at(later, NOW + 99.0) == NOW + 99.0


@given(st.lists(st.sampled_from([Kind.FULL, Kind.QUOTA, Kind.QUEUED, Kind.REFUSED]), max_size=30))
def test_no_place_is_asked_a_second_time_before_each_was_asked_once(kinds: list[Kind]) -> None:
    found, now, rooms = record(), NOW, dict.fromkeys(range(len(PLACES)), 0)
    for kind in kinds:
        if kind is not Kind.REFUSED:
            assert rooms[found.candidate] == min(
                count for index, count in rooms.items() if not _refuses(found, index)
            )
            rooms[found.candidate] += 1
        found = after(found, kind, now)
        following = failover.next_place(found, {}, now)
        if following is None:
            return
        now = max(now, following.at)
        found = dataclasses.replace(found, candidate=following.candidate)


def _refuses(found: TaskRecord, index: int) -> bool:
    refusals = [e["refusals"] for e in found.tried if e["candidate"] == index]
    return bool(refusals) and refusals[-1] >= 2


def test_the_list_of_what_was_tried_does_not_grow_for_ever() -> None:
    found, now = record(), NOW
    for _ in range(500):
        found = after(found, Kind.FULL, now)
        now += 400.0
    assert len(found.tried) <= 200
    assert found.tried[-1]["times"] > 100


@pytest.mark.parametrize("kind", list(Kind))
def test_a_take_over_sees_the_same(kind: Kind) -> None:
    """Every decision is computed from what the store has, in JSON."""
    import json

    found = after(record(), kind)
    again = dataclasses.replace(found, tried=json.loads(json.dumps(found.tried)))
    assert failover.next_place(again, {}, NOW) == failover.next_place(found, {}, NOW)
