"""Who may start now: first come, first served, and nobody is passed by a task that could delay it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.supervise.queue.backfill import (
    MARGIN_SECONDS,
    Demand,
    Holding,
    Place,
    Request,
    _Slots,
    schedule,
)

HOSTS = ("a", "b", "c", "d")
HOUR = 3600.0


def wants(task: str, count: int, seconds: float | None = None, **more: object) -> Request:
    return Request(task, (Demand(HOSTS, count),), seconds, **more)  # type: ignore[arg-type]


def has(*hosts: str, until: float | None = None) -> Holding:
    return Holding((), frozenset(hosts), until)


def places(holdings: list[Holding], *requests: Request) -> dict[str, Place]:
    return {place.task_id: place for place in schedule(0.0, holdings, requests)}


def starting(holdings: list[Holding], *requests: Request) -> list[str]:
    return [name for name, place in places(holdings, *requests).items() if place.may_start]


def test_as_many_start_as_there_is_room_for_in_their_order() -> None:
    assert starting([], wants("one", 2), wants("two", 1), wants("three", 2)) == ["one", "two"]


def test_without_limits_nobody_passes_a_gang_that_waits() -> None:
    assert starting([has("a")], wants("gang", 4), wants("small", 1, 60)) == []
    found = places([has("a")], wants("gang", 4), wants("small", 1, 60))
    assert [each.starts_at for each in found.values()] == [None, None]


def test_a_small_task_passes_if_it_is_over_before_the_gang_can_start() -> None:
    busy = [has("a", until=HOUR)]
    assert starting(busy, wants("gang", 4), wants("small", 1, HOUR / 2)) == ["small"]
    assert starting(busy, wants("gang", 4), wants("long", 1, HOUR)) == []
    assert starting(busy, wants("gang", 4), wants("unlimited", 1)) == []
    assert places(busy, wants("gang", 4))["gang"].starts_at == HOUR


def test_a_task_passes_on_hosts_that_the_gang_does_not_need() -> None:
    busy = [has("a", until=HOUR), has("b", until=HOUR)]
    assert starting(busy, wants("gang", 3), wants("one", 1), wants("two", 1)) == ["one"]


def test_nobody_passes_a_task_whose_launch_was_refused() -> None:
    """Another client holds hosts that this store knows nothing of."""
    assert starting([], wants("refused", 1, refused=True), wants("later", 1, 60)) == []


def test_tasks_of_other_hosts_do_not_wait() -> None:
    other = Request("other", (Demand(("x",), 1),), None)
    assert starting([has("a")], wants("gang", 4), other) == ["other"]


def test_a_place_for_tasks_is_not_kept_for_one_that_waits_for_gpus() -> None:
    spots, gpus = ("p0", "p1", "p2"), ("g0", "g1")
    on_gpus = Request("gpus", (Demand(spots, 1), Demand(gpus, 2)), None, refused=True)
    ordinary = [Request(f"t{n}", (Demand(spots, 1),), None) for n in range(3)]
    assert starting([], on_gpus, *ordinary) == ["t0", "t1"]


def test_alike_slots_of_a_task_that_runs_are_taken() -> None:
    held = Holding((Demand(HOSTS, 3),), frozenset(), None)
    assert starting([held], wants("one", 1), wants("two", 1)) == ["one"]


def test_those_that_wait_follow_one_another() -> None:
    busy = [has(*HOSTS, until=HOUR)]
    found = places(busy, wants("first", 4, HOUR), wants("next", 4, HOUR), wants("last", 1))
    length = HOUR + MARGIN_SECONDS
    assert [p.starts_at for p in found.values()] == [HOUR, HOUR + length, HOUR + 2 * length]


def test_a_gap_before_a_gang_begins_is_used_and_the_smallest_first() -> None:
    gang = Request("gang", (Demand(("a", "b"), 2),), None)
    on_a = Request("on a", (Demand(("a",), 1),), HOUR / 2)
    found = places([has("a", until=HOUR), has("b", until=2 * HOUR)], gang, on_a)
    assert (found["gang"].starts_at, found["on a"].starts_at) == (2 * HOUR, HOUR)
    short = Request("short", (Demand(("c", "a"), 1),), HOUR / 2)
    unlimited = Request("unlimited", (Demand(("c", "a"), 1),), None)
    assert starting([has("b", until=HOUR)], gang, short, unlimited) == ["short", "unlimited"]


def test_a_task_that_should_have_ended_still_has_its_hosts() -> None:
    assert starting([has("a", until=-60.0)], wants("four", 4), wants("three", 3)) == []
    assert starting([has("a", until=-60.0)], wants("three", 3)) == ["three"]


def test_a_gang_that_has_grown_holds_no_more_than_it_has() -> None:
    grown = Holding((Demand(HOSTS, 1),), frozenset({"a", "b"}), None)
    assert starting([grown], wants("two", 2), wants("one", 1)) == ["two"]


def test_an_elastic_gang_takes_what_is_free_when_it_starts() -> None:
    elastic = Request("elastic", (Demand(HOSTS, 2, most=4),), None)
    assert places([], elastic)["elastic"].nodes == 4
    assert places([has("a")], elastic)["elastic"].nodes == 3
    assert starting([], elastic, wants("one", 1)) == ["elastic"]
    pairs = Request("pairs", (Demand(HOSTS, 2, most=4, each=2),), None)
    assert places([], pairs)["pairs"].nodes == 2
    # Until then only what it needs is kept for it.
    busy = [has("a", "b", "c", until=HOUR)]
    assert starting(busy, elastic, wants("one", 1)) == ["one"]
    assert places(busy, elastic)["elastic"].nodes is None


def test_of_what_could_be_had_now_only_so_much_is_kept() -> None:
    spots, gpus = ("p0", "p1", "p2"), ("g0", "g1")
    on_gpus = Request("gpus", (Demand(gpus, 2), Demand(spots, 1)), None)
    ordinary = [Request(f"t{n}", (Demand(spots, 1),), None) for n in range(3)]
    assert starting([has("g0")], on_gpus, *ordinary) == ["t0", "t1"]


def test_a_time_is_not_tried_again_for_requests_that_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 2,000 tasks of several sizes and limits, `flow queue` took minutes."""
    tried, free = [0], _Slots.free

    def counted(slots: _Slots, *arguments: Any) -> list[str]:
        tried[0] += 1
        return free(slots, *arguments)

    monkeypatch.setattr(_Slots, "free", counted)
    requests = [wants(f"t{n}", 1 + n % 3, HOUR * (1 + n % 2)) for n in range(300)]
    assert len(places([], *requests)) == 300
    assert tried[0] < 5 * 300


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.none() | st.integers(60, 7200)), min_size=1, max_size=8
    ),
    st.lists(st.tuples(st.sampled_from(HOSTS), st.none() | st.integers(1, 7200)), max_size=4),
)
def test_who_is_let_past_delays_nobody_before(
    asked: list[tuple[int, int | None]], held: list[tuple[str, int | None]]
) -> None:
    """The expected start of each task is the same, whether or not those after it are there."""
    busy = dict(held)
    holdings = [has(host, until=until) for host, until in busy.items()]
    requests = [wants(str(n), count, seconds) for n, (count, seconds) in enumerate(asked)]
    whole = places(holdings, *requests)
    for number in range(1, len(requests)):
        alone = places(holdings, *requests[:number])
        assert all(whole[name] == place for name, place in alone.items())
    now = [each for each in requests if whole[each.task_id].may_start]
    assert sum(each.demands[0].count for each in now) <= len(HOSTS) - len(busy)
    # The same tasks may start if only that is asked.
    quick = list(schedule(0.0, holdings, requests, all_times=False))
    assert [p.task_id for p in quick if p.may_start] == [each.task_id for each in now]
    assert [p.task_id for p in quick] == list(whole)
    for first in requests:
        begin = whole[first.task_id].starts_at
        for later in requests[requests.index(first) + 1 :]:
            if whole[later.task_id].may_start and begin not in (None, 0.0):
                free = len(HOSTS) - first.demands[0].count
                over = later.seconds is not None and later.seconds + MARGIN_SECONDS <= begin
                assert over or later.demands[0].count <= free


def test_hosts_that_are_all_in_use_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2,000 tasks that waited for 200 hosts looked at all of them."""
    looks: list[object] = []
    free = _Slots.free

    def counting(slots: _Slots, names: Sequence[str], begin: float, end: float) -> list[str]:
        looks.append(names)
        return free(slots, names, begin, end)

    monkeypatch.setattr(_Slots, "free", counting)
    requests = [wants(f"t{number}", 1) for number in range(50)]
    found = list(schedule(0.0, [has(*HOSTS)], requests, all_times=False))
    assert [each.may_start for each in found] == [False] * 50
    assert len(looks) == 1
