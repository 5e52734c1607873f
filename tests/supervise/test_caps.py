"""The caps of a task, as a table: what they leave of a run, and what is said when one is reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowlite.provider import Plan
from flowlite.state import clock
from flowlite.state.records import InstanceRecord, TaskRecord
from flowlite.supervise.money.caps import Caps

NOW = 1_700_000_000.0
# Two machines at $36 an hour: one costs a cent a second.
PLAN = Plan("cloud", "big", 2, 1, price_per_hour=36.0, reserved_seconds=20.0)


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


def task(started: float | None = None) -> TaskRecord:
    return TaskRecord("t1", "n", "f", "cloud", {}, {}, {}, NOW - 9999, started_at=started)


def machine(age: float, price: float = 36.0, ended: float | None = None) -> InstanceRecord:
    return InstanceRecord("i", "t1", "cloud", "running", price, NOW - age, {}, 0, ended)


def pair(age: float, price: float = 36.0) -> list[InstanceRecord]:
    return [machine(age, price), machine(age, price)]


def caps(**changes: object) -> Caps:
    return Caps(replace(PLAN, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "started", "found", "left"),
    [
        ({}, None, pair(10), None),
        ({"max_run_seconds": 80.0}, None, [], 80.0),
        ({"max_run_seconds": 80.0}, NOW - 30, pair(30), 50.0),
        ({"max_cost": 2.0}, NOW - 30, pair(30), 50.0),
        ({"max_cost": 2.0, "max_run_seconds": 40.0}, NOW - 30, pair(30), 10.0),
        ({"max_cost": 2.0, "max_run_seconds": 400.0}, NOW - 30, pair(30), 50.0),
        # One that costs more than was planned, by $36; and one that has ended, which costs nothing more.
        ({"max_cost": 2.0}, NOW, [machine(0), machine(0, 72.0)], 2.0 / 0.03 - 20),
        ({"max_cost": 2.0}, NOW, [machine(0), machine(100, ended=NOW)], 1.0 / 0.01 - 20),
        # One that is kept for another task is charged still, and a price that is low just now may rise to the highest.
        ({"max_cost": 2.0}, NOW, [machine(0), machine(0, ended=NOW + 600)], 2.0 / 0.02 - 20),
        ({"max_cost": 2.0}, NOW, [machine(0), machine(0, 18.0)], 2.0 / 0.02 - 20),
    ],
)
def test_the_time_that_is_left(
    changes: dict[str, object],
    started: float | None,
    found: list[InstanceRecord],
    left: float | None,
) -> None:
    assert caps(**changes).time_left(task(started), found) == pytest.approx(left)


def test_the_time_with_more_machines() -> None:
    assert caps().time_left(task(), pair(0), 2) is None
    paid = caps(max_cost=2.0)
    assert paid.time_left(task(NOW), pair(0), 0) == pytest.approx(80.0)
    assert paid.time_left(task(NOW), pair(0), 2) == pytest.approx(30.0)
    both = caps(max_cost=2.0, max_run_seconds=20.0)
    assert both.time_left(task(NOW), pair(0), 2) == pytest.approx(20.0)


def test_a_launch_gets_what_is_left_whether_workers_or_only_machines_have_begun() -> None:
    limits = caps(max_cost=2.0, max_run_seconds=300.0)
    assert limits.plan_left(task(), []) is limits.plan
    booted = limits.plan_left(task(), pair(30))
    assert (booted.max_cost, booted.max_run_seconds) == pytest.approx((1.4, 50.0))
    # Machines of an earlier attempt were free, or are not known any more.
    begun = limits.plan_left(task(NOW - 290), [])
    assert (begun.max_cost, begun.max_run_seconds) == pytest.approx((2.0, 10.0))
    over = limits.plan_left(task(NOW - 400), pair(400))
    assert (over.max_cost, over.max_run_seconds) == (0.0, 0.0)


def test_why_the_money_ends_a_task() -> None:
    assert caps().spent(pair(9999)) == ""
    limits = caps(max_cost=2.0)
    assert limits.spent(pair(79)) == ""
    assert limits.spent(pair(80)) == "max_cost: stopped at $1.60, so that it ends below $2.00"
    assert limits.spent(pair(100)) == "max_cost: $2.00 are used up"


def test_how_long_the_money_lasts() -> None:
    assert caps().paid_seconds(pair(0)) is None
    ask = caps(max_cost=2.0).paid_seconds
    assert [ask(pair(age)) for age in (0, 30, 90)] == pytest.approx([80.0, 50.0, 0.0])
    # What costs nothing is not bounded by money.
    assert caps(max_cost=2.0, price_per_hour=0.0).paid_seconds(pair(0, 0.0)) is None


@pytest.mark.parametrize(
    ("changes", "hours", "ran", "told", "reason"),
    [
        # The gang's own reason holds where no cap was reached.
        ({}, None, 100.0, "the job has ended", "the job has ended"),
        ({"max_run_seconds": 3600.0}, None, 100.0, "the job has ended", "the job has ended"),
        # A cap says more than that, even if it was reached half a second early.
        (
            {"max_run_seconds": 3600.0},
            1.0,
            3599.5,
            "the job has ended",
            "max_run_time_hours: stopped after 60 min",
        ),
        ({"max_run_seconds": 600.0}, 1 / 6, None, "", "max_run_time_hours: stopped after 10 min"),
        (
            {"max_cost": 2.0, "reserved_seconds": 0.0},
            None,
            None,
            "",
            "max_cost: $2.00 are used up after 0 s",
        ),
        # With both, the one that was reached.
        (
            {"max_cost": 2.0, "max_run_seconds": 3600.0},
            1.0,
            3599.5,
            "",
            "max_run_time_hours: stopped after 60 min",
        ),
        (
            {"max_cost": 2.0, "max_run_seconds": 3600.0},
            1.0,
            100.0,
            "the deadline",
            "max_cost: stopped after 100 s, so that it ends below $2.00",
        ),
        # The plan's own time is shorter where the provider asks for it, such as a partition or a capacity block.
        (
            {"max_run_seconds": 600.0},
            1.0,
            600.0,
            "the longest run of 600 s is over",
            "the longest run of 10 min is over: cloud allows no more there, less than max_run_time_hours (1)",
        ),
        # Nobody else set a time.
        (
            {"max_run_seconds": 600.0},
            None,
            600.0,
            "the longest run of 600 s is over",
            "the longest run of 10 min is over: cloud allows no more there",
        ),
        # Money would have lasted for 780 s, or 100 s.
        (
            {"max_run_seconds": 600.0, "max_cost": 16.0},
            1.0,
            600.0,
            "",
            "the longest run of 10 min is over: cloud allows no more there, less than max_run_time_hours (1)",
        ),
        (
            {"max_run_seconds": 100.0, "max_cost": 2.4},
            1.0,
            100.0,
            "",
            "max_cost: stopped after 100 s, so that it ends below $2.40",
        ),
    ],
)
def test_the_reason_names_the_cap_that_was_reached(
    changes: dict[str, object], hours: float | None, ran: float | None, told: str, reason: str
) -> None:
    config = {} if hours is None else {"max_run_time_hours": hours}
    limits = Caps(replace(PLAN, **changes), config)  # type: ignore[arg-type]
    started = None if ran is None else NOW - ran
    assert limits.time_is_over(task(started), told) == reason
