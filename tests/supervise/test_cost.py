"""Money: what one adds up to is what its parts add up to, by whatever they are sorted."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.provider import Instance, Plan
from flowlite.state import clock
from flowlite.state.records import InstanceRecord, TaskRecord
from flowlite.supervise.money.billing import Billing
from flowlite.supervise.money.caps import Caps
from flowlite.supervise.money.cost import PRICES, cost_by_day, cost_of, is_upper_bound, rate_of

START = 1_700_000_000.0
DAY = 86400.0
prices = st.floats(0.01, 1000.0)
moments = st.floats(0.0, 30 * DAY)


def row(
    launched: float = START, ended: float | None = None, price: float = 36.0, **data: object
) -> InstanceRecord:
    return InstanceRecord("i", "t1", "cloud", "running", price, launched, dict(data), 0, ended)


@st.composite
def rows(draw: st.DrawFn) -> InstanceRecord:
    """An instance with any life, and a price that may have changed on the way."""
    began = START + draw(moments)
    ended = draw(st.none() | moments.map(lambda after: began + after))
    changes = sorted(draw(st.lists(st.tuples(moments, prices), max_size=4)))
    price = draw(prices)
    if not changes:
        return row(began, ended, price)
    segments = [[began, price], *([began + after, other] for after, other in changes)]
    return row(began, ended, changes[-1][1], **{PRICES: segments})


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/Santiago", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_days_add_up_to_the_whole_in_every_zone(zone: None) -> None:
    @given(st.lists(rows(), max_size=5), moments)
    def check(found: list[InstanceRecord], after: float) -> None:
        days = cost_by_day(found, START + after)
        assert sum(days.values()) == pytest.approx(cost_of(found, START + after), abs=1e-6)
        assert list(days) == sorted(days)

    check()


def test_a_day_holds_what_was_charged_on_it(zone: None) -> None:
    noon = datetime.datetime(2025, 3, 29, 12).timestamp()
    midnight = datetime.datetime(2025, 3, 30).timestamp()
    end = datetime.datetime(2025, 3, 30, 6).timestamp()
    days = cost_by_day([row(noon, end, price=1.0)], end + DAY)
    assert days == pytest.approx(
        {"2025-03-29": (midnight - noon) / 3600, "2025-03-30": (end - midnight) / 3600}
    )


@given(st.lists(rows(), max_size=5), moments, moments)
def test_cost_only_grows_and_is_never_negative(
    found: list[InstanceRecord], one: float, other: float
) -> None:
    early, late = sorted((START + one, START + other))
    assert 0.0 <= cost_of(found, early) <= cost_of(found, late) + 1e-9


@given(rows(), moments)
def test_a_change_to_the_same_price_changes_nothing(found: InstanceRecord, after: float) -> None:
    now = START + 60 * DAY
    if PRICES in found.data or found.launched_at + after > now:
        return
    data = {
        PRICES: [
            [found.launched_at, found.price_per_hour],
            [found.launched_at + after, found.price_per_hour],
        ]
    }
    same = row(found.launched_at, found.ended_at, found.price_per_hour, **data)
    assert cost_of([same], now) == pytest.approx(cost_of([found], now))


def test_each_price_is_charged_while_it_held() -> None:
    changed = row(price=72.0, **{PRICES: [[START, 36.0], [START + 100, 72.0]]})
    assert cost_of([changed], START + 200) == pytest.approx(1.0 + 2.0)
    assert cost_of([changed], START + 50) == pytest.approx(0.5)
    assert rate_of([changed], START + 200) == 72.0


def test_prices_from_before_a_machine_was_taken_over_are_not_charged() -> None:
    """A cloud tells the prices of its whole life, of which a later task had only the end."""
    prices = [[START - 3 * HOUR, 9.0], [START - 2 * HOUR, 18.0], [START - HOUR, 36.0]]
    taken_over = row(price=36.0, **{PRICES: prices})
    assert cost_of([taken_over], START + HOUR) == pytest.approx(36.0)
    risen = row(price=72.0, **{PRICES: [*prices, [START + HOUR, 72.0]]})
    assert cost_of([risen], START + 2 * HOUR) == pytest.approx(36.0 + 72.0)


def test_a_minute_is_the_least_and_extras_are_charged_beside_the_price() -> None:
    short = row(START, START + 6, price=36.0, least_seconds=60.0, extras_per_hour=3.6)
    assert cost_of([short], START + 1) == pytest.approx(39.6 / 60)
    assert cost_of([short], START + 9999) == pytest.approx(39.6 / 60)
    free = row(START, START + 3600, price=0.0, extras_per_hour=0.5)
    assert cost_of([free], START + 3600) == pytest.approx(0.5)
    assert rate_of([row(price=36.0, extras_per_hour=3.6)], START + 1) == pytest.approx(39.6)


def test_an_end_that_nobody_saw_is_never_after_the_machines_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = row(START, None, price=36.0, ends_by=START + 100)
    unseen = Billing("cloud", 36.0).ended(known, START + 8 * 3600)
    assert unseen.ended_at == START + 100
    assert is_upper_bound([unseen])
    # Without such an end only the look itself bounds it.
    endless = Billing("cloud", 36.0).ended(row(START, None, price=36.0), START + 8 * 3600)
    assert endless.ended_at == START + 8 * 3600
    assert is_upper_bound([endless])
    # One that the provider does not list, since it is new, was not seen either.
    new = Billing("cloud", 36.0)
    with monkeypatch.context() as patched:
        patched.setattr(clock, "now", lambda: START + 200)
        new.note([Instance("i", "t1", launched_at=START, unlisted=True)])
    assert is_upper_bound([new.ended(row(START, None, price=36.0), START + 250)])
    # The provider knows better, late.
    better = Billing("cloud", 36.0)
    better.note([Instance("i", "t1", "ended", launched_at=START, ended_at=START + 13)])
    exact = better.ended(unseen, START + 9 * 3600)
    assert exact.ended_at == START + 13
    assert not is_upper_bound([exact])


class TestWhatTheProviderSays:
    def accounts(self, *listed: Instance) -> Billing:
        made = Billing("cloud", 36.0)
        made.note(listed)
        return made

    def test_beginning_and_end_are_the_listed_ones_to_the_second(self) -> None:
        listed = Instance("i", "t1", "ended", launched_at=START + 3, ended_at=START + 13)
        (done,) = [self.accounts(listed).ended(row(START), START + 99)]
        assert (done.state, done.launched_at, done.ended_at) == ("ended", START + 3, START + 13)
        assert cost_of([done], START + 999) == pytest.approx(0.1)

    def test_an_end_that_was_noted_before_is_corrected(self) -> None:
        listed = Instance("i", "t1", "ended", launched_at=START, ended_at=START + 10)
        done = self.accounts(listed).ended(row(ended=START + 60), START + 99)
        assert done.ended_at == START + 10

    def test_one_that_is_not_listed_any_more_has_ended_now_at_the_latest(self) -> None:
        assert self.accounts().ended(row(), START + 99).ended_at == START + 99
        assert self.accounts().ended(row(ended=START + 5), START + 99).ended_at == START + 5

    def test_a_late_listing_does_not_undo_a_better_one(self) -> None:
        accounts = self.accounts(
            Instance("i", "t1", "ended", launched_at=START, ended_at=START + 1)
        )
        accounts.note([Instance("i", "t1", "running", launched_at=START)])
        assert accounts.ended(row(), START + 99).ended_at == START + 1

    def test_a_new_price_is_charged_from_when_it_was_seen(self) -> None:
        accounts = self.accounts(Instance("i", "t1", price_per_hour=72.0, launched_at=START))
        once = accounts.corrected(row(price=36.0))
        assert once.price_per_hour == 72.0
        assert [price for _, price in once.data[PRICES]] == [36.0, 72.0]
        assert accounts.corrected(once) == once
        accounts.note([Instance("i", "t1", price_per_hour=18.0, launched_at=START)])
        twice = accounts.corrected(once)
        assert [price for _, price in twice.data[PRICES]] == [36.0, 72.0, 18.0]

    def test_prices_that_the_provider_tells_at_once_are_charged_from_the_first_row_on(self) -> None:
        prices = [[START, 36.0], [START + 10, 72.0]]
        told = Instance("i", "t1", price_per_hour=72.0, launched_at=START, data={PRICES: prices})
        first = self.accounts(told).record(told, None)
        assert cost_of([first], START + 20) == pytest.approx(0.3)
        kept = self.accounts(told).kept(row(price=36.0), told, START + 20)
        assert cost_of([kept], START + 99) == pytest.approx(0.3)

    def test_a_kept_one_is_charged_what_it_can_cost_at_most_until_the_provider_is_asked(
        self,
    ) -> None:
        most = {PRICES: [[START, 36.0], [START + 10, 72.0]]}
        warm = Instance("i", "t1", "warm", launched_at=START, data=most, cost_at_most=True)
        kept = self.accounts(warm).kept(row(price=36.0), warm, START + 20)
        assert (cost_of([kept], START + 99), is_upper_bound([kept])) == (pytest.approx(0.3), True)
        gone = Instance(
            "i",
            "t1",
            "ended",
            launched_at=START,
            ended_at=START + 15,
            data={PRICES: most[PRICES][:1]},
        )
        known = self.accounts(gone).looked_up(kept)
        assert (known.state, known.ended_at) == ("ended", START + 15)
        assert (cost_of([known], START + 99), is_upper_bound([known])) == (
            pytest.approx(0.15),
            False,
        )

    def test_a_kept_one_that_is_still_there_after_its_time_is_charged_on(self) -> None:
        warm = Instance("i", "t1", "running", price_per_hour=36.0, launched_at=START)
        kept = row(price=36.0, ended=START + 20, cost_at_most=True)
        still = self.accounts(warm).looked_up(kept)
        assert still.ended_at == pytest.approx(time.time(), abs=5)
        assert is_upper_bound([still])
        until = time.time() + HOUR
        kept = row(price=36.0, ended=until, cost_at_most=True)
        assert self.accounts(warm).looked_up(kept).ended_at == until

    def test_what_no_store_knows_is_charged_too(self) -> None:
        accounts = self.accounts(
            Instance("known", "t1", launched_at=START),
            Instance("strange", "t1", "ended", launched_at=START, ended_at=START + 10),
            Instance("processes without a node", "t1"),
        )
        (found,) = accounts.unknown(["known"])
        assert (found.id, found.price_per_hour) == ("strange", 36.0)


HOUR = 3600.0


@pytest.mark.parametrize("ahead", [8 * HOUR, -8 * HOUR])
def test_a_wrong_clock_of_this_flow_home_changes_no_cost(
    monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """`ahead` is by how much our clock is ahead of the provider's."""
    now = START + ahead
    monkeypatch.setattr(clock, "now", lambda: now)
    asked_at = now - 70.0
    told = Instance(
        "i",
        "t1",
        price_per_hour=72.0,
        launched_at=START - 60,
        data={PRICES: [[START - 60, 36.0], [START + HOUR, 72.0]]},
        ends_by=START + 24 * HOUR,
    )
    accounts = Billing("cloud", 36.0, lambda instance: asked_at)
    accounts.note([told])
    first = accounts.record(told, None)
    assert cost_of([first], now + HOUR) == pytest.approx(36.0, abs=1.5)
    now += 2 * HOUR
    # Another supervisor goes on with the row, and sees the end of the machine.
    later = Billing("cloud", 36.0)
    later.note([told])
    assert later.corrected(first) == first
    assert later.record(told, first).launched_at == first.launched_at
    assert later.kept(first, told, now).data[PRICES] == first.data[PRICES]
    assert cost_of([first], now) == pytest.approx(36.0 + 72.0, abs=3.0)
    later.note([replace(told, state="ended", ended_at=START + 1.5 * HOUR)])
    ended = later.ended(first, now)
    assert cost_of([ended], now) == pytest.approx(36.0 + 36.0, abs=1.5)
    assert not is_upper_bound([ended])
    unseen = Billing("cloud", 36.0).ended(first, START + ahead + 48 * HOUR)
    assert unseen.ended_at == pytest.approx(START + ahead + 24 * HOUR, abs=120.0)


def test_the_last_listing_counts_but_takes_no_end_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = START
    monkeypatch.setattr(clock, "now", lambda: now)
    told = Instance("i", "t1", price_per_hour=36.0, launched_at=START)
    accounts = Billing("cloud", 36.0)
    accounts.note([told])
    first = accounts.record(told, None)
    now = START + HOUR
    dearer = replace(told, price_per_hour=72.0)
    accounts.note([dearer])
    later = accounts.corrected(first)
    assert cost_of([later], START + 2 * HOUR) == pytest.approx(36.0 + 72.0)
    over = replace(dearer, state="ended", ended_at=START + 1.5 * HOUR)
    # A listing from before the end arrives after it.
    accounts.note([over])
    accounts.note([dearer])
    ended = accounts.ended(later, START + 3 * HOUR)
    assert (ended.ended_at, is_upper_bound([ended])) == (over.ended_at, False)
    accounts.note([replace(over, ended_at=START + 1.25 * HOUR)])
    assert accounts.ended(later, START + 3 * HOUR).ended_at == START + 1.25 * HOUR


def test_an_end_is_known_well_enough_if_the_machine_was_there_just_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = START + HOUR
    monkeypatch.setattr(clock, "now", lambda: now)
    told = Instance("i", "t1", price_per_hour=36.0, launched_at=START)
    accounts = Billing("cloud", 36.0)
    accounts.note([told])
    known = row(START, None, price=36.0)
    assert not is_upper_bound([accounts.ended(known, now + 60)])
    assert is_upper_bound([accounts.ended(known, now + 120)])
    # That it has ended, and not when, says nothing of how long it was there.
    now += 120
    accounts.note([replace(told, state="ended")])
    assert is_upper_bound([accounts.ended(known, now + 1)])


def test_an_end_that_was_recorded_stays_as_it_is() -> None:
    later = Billing("cloud", 36.0)
    over = later.ended(row(START, START + HOUR), START + 9 * HOUR)
    assert (over.ended_at, is_upper_bound([over])) == (START + HOUR, False)
    unseen = later.ended(row(START, None), START + HOUR)
    again = later.ended(unseen, START + 9 * HOUR)
    assert (again.ended_at, is_upper_bound([again])) == (START + HOUR, True)
    # One that would have ended by itself later is not charged until then.
    early = later.ended(row(START, None, ends_by=START + 9 * HOUR), START + HOUR)
    assert early.ended_at == START + HOUR


def test_a_launch_that_is_told_late_is_moved_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    now = START - 8 * HOUR
    monkeypatch.setattr(clock, "now", lambda: now)
    accounts = Billing("cloud", 36.0)
    accounts.note([new := Instance("i", "t1", price_per_hour=36.0)])
    first = accounts.record(new, None)
    now += 120.0
    accounts.note([Instance("i", "t1", price_per_hour=36.0, launched_at=START)])
    moved = accounts.corrected(first)
    assert moved.launched_at == START - 8 * HOUR
    now += HOUR
    assert accounts.corrected(moved) == moved
    accounts.note([replace(new, state="ended", launched_at=START, ended_at=START + 60)])
    assert accounts.ended(moved, now).ended_at == START + 60 - 8 * HOUR


class TestTheCapOnMoney:
    def plan(self, **changes: object) -> Plan:
        given = {"price_per_hour": 36.0, "max_cost": 2.0, "reserved_seconds": 20.0, **changes}
        return Plan("cloud", "big", 2, 1, **given)  # type: ignore[arg-type]

    def task(self, started: float | None = None) -> TaskRecord:
        return TaskRecord("t1", "n", "f", "cloud", {}, {}, {}, START, started_at=started)

    def test_all_machines_since_their_launch_count(self) -> None:
        now = time.time()
        # 2 × 36 dollars per hour are 0.02 per second; 40 s of boot and one that was replaced are spent already.
        found = [row(now - 40), row(now - 40), row(now - 40, now - 20)]
        left = Caps(self.plan()).time_left(self.task(), found)
        assert left == pytest.approx((2.0 - 1.0) / 0.02 - 20.0, abs=0.5)

    def test_it_stops_while_the_end_can_still_be_paid(self) -> None:
        limits, now = Caps(self.plan()), time.time()
        assert limits.spent([row(now - 70), row(now - 70)]) == ""
        assert "so that it ends below $2.00" in limits.spent([row(now - 85), row(now - 85)])
        assert "are used up" in limits.spent([row(now - 105), row(now - 105)])

    def test_the_highest_price_counts_for_the_time_that_nodes_keep(self) -> None:
        plan = self.plan(spot=True, price_cap=72.0)
        assert Caps(plan).time_left(self.task()) == pytest.approx(2.0 / 0.04 - 20.0)

    def test_a_later_launch_gets_what_is_left(self) -> None:
        limits, now = Caps(self.plan(max_run_seconds=80.0)), time.time()
        assert limits.plan_left(self.task(), []) == limits.plan
        left = limits.plan_left(self.task(now - 30), [row(now - 30), row(now - 30)])
        assert left.max_cost == pytest.approx(1.4, abs=0.05)
        assert left.max_run_seconds == pytest.approx(50.0, abs=1.0)

    @given(price=prices, count=st.integers(1, 64), cap=st.floats(1.0, 1e5), boot=st.floats(0, 900))
    def test_run_and_end_together_never_cost_more_than_the_cap(
        self, price: float, count: int, cap: float, boot: float
    ) -> None:
        plan = Plan(
            "cloud", "big", count, 1, price_per_hour=price, max_cost=cap, reserved_seconds=40.0
        )
        now = time.time()
        found = [row(now - boot, price=price) for _ in range(count)]
        left = Caps(plan).time_left(self.task(), found)
        assert left is not None
        whole = boot + max(0.0, left) + 40.0
        spent_before_it_began = price * count * (boot + 40.0) / 3600 > cap
        assert spent_before_it_began or price * count * whole / 3600 <= cap * (1 + 1e-6) + 0.01
