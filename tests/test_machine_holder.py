"""A machine that one task hands to the next belongs to one task in the store, in any order of writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.state.store import InstanceRecord, Lease, Store
from flowlite.supervise.money.cost import cost_of, is_upper_bound
from tests.test_store import task


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state.db")
    yield store
    store.close()


def lease_of(store: Store, name: str) -> Lease:
    store.create_task(task(name))
    lease = store.acquire_lease(name, "me", 60)
    assert lease is not None
    return lease


def row(name: str, hold: int, launched: float, ended: float | None = None) -> InstanceRecord:
    return InstanceRecord(
        id="i-1",
        task_id=name,
        provider="aws",
        state="running" if ended is None else "warm",
        price_per_hour=1.0,
        launched_at=launched,
        data={"id": "i-1", "task_id": name, "hold": hold},
        node_rank=0,
        ended_at=ended,
    )


def times(store: Store, name: str) -> list[tuple[str, str, float, float | None]]:
    return [(r.id, r.state, r.launched_at, r.ended_at) for r in store.instances(name)]


def test_the_next_task_has_the_machine_and_the_last_one_is_charged_until_then(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    store.put_instances(first, [row("t1", 0, 100.0, 320.0)])
    store.put_instances(second, [row("t2", 1, 210.0)])
    assert times(store, "t1") == [("i-1@t1", "ended", 100.0, 210.0)]
    assert times(store, "t2") == [("i-1", "running", 210.0, None)]


def test_a_task_that_writes_late_does_not_get_its_machine_back(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    store.put_instances(second, [row("t2", 1, 210.0)])
    for late in (row("t1", 0, 100.0), row("t1", 0, 100.0, 320.0)):
        store.put_instances(first, [late])
        assert times(store, "t1") == [("i-1@t1", "ended", 100.0, 210.0)]
        assert times(store, "t2") == [("i-1", "running", 210.0, None)]


def test_an_end_before_the_hand_over_stays(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    store.put_instances(first, [row("t1", 0, 100.0, 150.0)])
    store.put_instances(second, [row("t2", 1, 210.0)])
    assert times(store, "t1") == [("i-1@t1", "ended", 100.0, 150.0)]


def test_a_machine_goes_through_many_tasks(store: Store) -> None:
    for number in range(4):
        lease = lease_of(store, f"t{number}")
        start = 100.0 * (number + 1)
        store.put_instances(lease, [row(f"t{number}", number, start, start + 500.0)])
    found = [times(store, f"t{number}")[0] for number in range(4)]
    assert [each[0] for each in found] == ["i-1@t0", "i-1@t1", "i-1@t2", "i-1"]
    assert [each[3] for each in found] == [200.0, 300.0, 400.0, 900.0]


def test_the_time_for_which_it_was_kept_has_the_price_of_that_time(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    store.put_instances(first, [row("t1", 0, 0.0, 7200.0)])
    told = row("t2", 1, 5400.0)
    told.data["prices"] = [[0.0, 1.0], [3600.0, 4.0]]
    store.put_instances(second, [told])
    assert cost_of(store.instances("t1"), 9000.0) == 1.0 + 2.0
    assert cost_of(store.instances("t2"), 9000.0) == 4.0


def test_the_minimum_time_of_a_machine_is_charged_once(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    had, has = row("t1", 0, 0.0, 3600.0), row("t2", 1, 900.0, 1800.0)
    had.data["least_seconds"], has.data["least_seconds"] = 3600.0, 2700.0
    store.put_instances(first, [had])
    store.put_instances(second, [has])
    store.put_instances(first, [had])
    assert [cost_of(store.instances(name), 9000.0) for name in ("t1", "t2")] == [0.25, 0.75]


def kept(name: str, prices: list[list[float]]) -> InstanceRecord:
    """The row of a machine that is kept, whose last price is the highest there can be."""
    found = row(name, 0, 100.0, 320.0)
    return dataclasses.replace(found, data={**found.data, "prices": prices, "cost_at_most": True})


@pytest.mark.parametrize("late", [False, True], ids=["in order", "late"])
def test_a_bound_that_nobody_can_correct_any_more_stays_one(store: Store, late: bool) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    rows = [(first, kept("t1", [[100.0, 36.0], [200.0, 72.0]])), (second, row("t2", 1, 210.0))]
    for lease, each in reversed(rows) if late else rows:
        store.put_instances(lease, [each])
    found = store.instances("t1")
    assert cost_of(found, 999.0) == pytest.approx(1.0 + 0.2)
    assert is_upper_bound(found)
    assert store.kept_at_most() == []


def test_prices_that_the_next_task_is_told_replace_a_bound(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    store.put_instances(first, [kept("t1", [[100.0, 36.0], [200.0, 72.0]])])
    taken = row("t2", 1, 210.0)
    taken = dataclasses.replace(taken, data={**taken.data, "prices": [[100.0, 36.0]]})
    store.put_instances(second, [taken])
    found = store.instances("t1")
    assert cost_of(found, 999.0) == pytest.approx(1.1)
    assert not is_upper_bound(found)


def test_what_is_asked_about_a_kept_machine_does_not_take_it_back(store: Store) -> None:
    first, second = lease_of(store, "t1"), lease_of(store, "t2")
    store.put_instances(first, [kept("t1", [[100.0, 36.0]])])
    (asked,) = store.kept_at_most()
    assert store.kept_at_most(["t2"]) == []
    store.put_instances(second, [row("t2", 1, 210.0)])
    before = store.instances()
    store.put_kept([asked])
    assert store.instances() == before
