"""What flowlite says that bids have cost, beside the bill that the fake of Mithril writes by books of its own."""

from __future__ import annotations

import time

import pytest

from flowlite.provider import Instance, Plan
from flowlite.state import clock
from flowlite.state.store import InstanceRecord
from flowlite.supervise.money.billing import Billing
from flowlite.supervise.money.cost import cost_of, is_upper_bound, volume_cost
from provider_adapters.mithril import costs
from provider_adapters.mithril.rest import requests
from tests.providers.mithril_on_paper import H100, TASK, Paper, eventually

pytestmark = pytest.mark.timeout(120)
# To the cent: a busy machine may take a moment between the two places where the fake notes a change.
CENT = 0.01


class Payer:
    """Keeps the accounts of one task as the supervisor does. Another one is another supervisor, later."""

    def __init__(self, paper: Paper, rows: dict[str, InstanceRecord] | None = None) -> None:
        self.paper = paper
        self.plan = Plan.from_json(paper.intend().plan)
        self.accounts = Billing("mithril", self.plan.price_per_hour)
        self.rows = dict(rows or {})

    def launch(self, number: int = 1) -> list[Instance]:
        found = self.paper.launch(self.paper.intend(number=number))
        self.accounts.note(found)
        self.rows |= {each.id: self.accounts.record(each, None) for each in found}
        return found

    def end(self) -> None:
        """Ends all, looks until nothing is left, and closes the accounts."""
        self.accounts.note(self.paper.end())
        self.rows |= {each.id: each for each in self.accounts.unknown(self.rows)}
        now = clock.now()
        self.rows = {name: self.accounts.ended(row, now) for name, row in self.rows.items()}

    def check(self) -> None:
        bill = sum(each["dollars"] for each in self.paper.cloud.bill())
        cost = cost_of(self.rows.values(), clock.now())
        assert bill > CENT, "there is something to compare"
        assert cost == pytest.approx(bill, abs=CENT / 2)
        assert not is_upper_bound(self.rows.values())


def passes(seconds: float) -> None:
    """A while in which machines cost something, and nobody looks."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until or None, "time passes")


def running(paper: Paper) -> set[str]:
    return {each["id"] for each in paper.cloud.instances() if each["state"] == "STATUS_RUNNING"}


def test_a_lost_bid_and_the_machines_that_it_won_anew_are_on_the_bill(paper: Paper) -> None:
    payer = Payer(paper)
    first = {each.id for each in payer.launch()}
    passes(1.0)
    paper.cloud.preempt([paper.live()[0]["fid"]], 0.1)
    # It wins two others before anybody has looked.
    eventually(lambda: (running(paper) - first) or None, "it has won others")
    passes(1.0)
    paper.cloud.price(H100, 19.0)
    payer.launch(number=2)
    passes(1.0)
    payer.end()
    assert len(payer.rows) >= 6, "those that nobody asked for, too"
    payer.check()


def test_prices_that_move_while_no_supervisor_runs_are_charged_from_history(paper: Paper) -> None:
    payer = Payer(paper)
    payer.launch()
    for dollars in (20.0, 15.0, 21.0):
        passes(0.7)
        paper.cloud.price(H100, dollars)
    passes(0.7)
    later = Payer(paper, payer.rows)
    later.end()
    later.check()


@pytest.mark.parametrize("how", ["died", "ended by a node"])
def test_machines_that_were_gone_while_nobody_looked_cost_until_they_were(
    paper: Paper, how: str
) -> None:
    payer = Payer(paper)
    found = payer.launch()
    passes(2.0)
    if how == "died":
        for each in found:
            paper.cloud.die(each.id)
    else:
        paper.request("DELETE", f"/v2/spot/bids/{paper.live()[0]['fid']}")
    eventually(lambda: not running(paper) or None, "they are gone")
    bill = sum(each["dollars"] for each in paper.cloud.bill())
    passes(3.0)
    later = Payer(paper, payer.rows)
    later.end()
    assert sum(each["dollars"] for each in paper.cloud.bill()) == pytest.approx(bill)
    later.check()


def test_machines_of_which_mithril_has_not_noticed_that_they_died_cost_on(paper: Paper) -> None:
    payer = Payer(paper)
    found = payer.launch()
    paper.cloud.die(found[0].id, "STATUS_RUNNING")
    passes(2.0)
    payer.end()
    payer.check()


def test_what_a_running_bid_has_cost_so_far_is_on_the_bill(paper: Paper) -> None:
    payer = Payer(paper)
    payer.launch()
    paper.cloud.price(H100, 20.0)
    passes(2.0)
    payer.accounts.note(paper.make().list_instances(TASK))
    rows = [payer.accounts.corrected(row) for row in payer.rows.values()]
    bill = sum(each["dollars"] for each in paper.cloud.bill())
    assert cost_of(rows, clock.now()) == pytest.approx(bill, abs=CENT)
    payer.end()
    payer.check()


def period(begin: int, end: int | None, cents: int) -> dict[str, object]:
    """An entry of the history of prices; minutes of an hour."""
    until = None if end is None else f"2025-01-31T10:{end:02}:00Z"
    return {"start_time": f"2025-01-31T10:{begin:02}:00Z", "end_time": until, "price_cents": cents}


def state(minute: int, status: str) -> dict[str, object]:
    """An entry of the history of states."""
    return {"timestamp": f"2025-01-31T10:{minute:02}:00Z", "status": status}


def test_a_price_whose_end_is_not_told_yet_is_charged_until_the_next_one() -> None:
    ten = requests.unix("2025-01-31T10:00:00Z")
    assert ten is not None
    histories = {
        "open": [period(0, None, 120), period(10, None, 240)],
        "late": [period(0, 15, 120), period(10, 30, 240)],
        "within": [period(0, 30, 120), period(10, 20, 240)],
        "twice": [period(0, 30, 120), period(0, 30, 120)],
    }
    entries = [{"instance_fid": name, "events": events} for name, events in histories.items()]
    bill = costs.charged(entries, {})
    both = ((ten, 1.2), (ten + 600, 2.4))
    assert {name: each.prices for name, each in bill.items()} == {
        "open": both,
        "late": both,
        "within": both,
        "twice": ((ten, 1.2),),
    }
    assert [each.until for each in bill.values()] == [0.0, *[ten + 1800] * 3]


def test_a_history_of_prices_and_states_is_a_bill() -> None:
    ten = requests.unix("2025-01-31T10:00:00Z")
    assert ten is not None
    histories = {
        # In no order. Nothing is charged between the second and the third.
        "goes on": [period(30, None, 360), period(0, 10, 120), period(10, 20, 240)],
        "gone": [period(0, 10, 120), period(10, None, 240)],
        "closed": [period(0, 10, 120)],
        "never": [],
    }
    states = [
        {
            "instance_fid": "gone",
            "events": [state(40, "STATUS_PREEMPTED"), state(45, "STATUS_TERMINATED")],
        },
        # It was preempted, and is there again.
        {
            "instance_fid": "goes on",
            "events": [state(30, "STATUS_RUNNING"), state(20, "STATUS_PREEMPTED")],
        },
    ]
    entries = [{"instance_fid": name, "events": events} for name, events in histories.items()]
    bill = costs.charged(entries, {name: at for name, at, _ in costs.ends(states)})
    assert bill.keys() == {"goes on", "gone", "closed"}
    goes_on = bill["goes on"]
    assert (goes_on.since, goes_on.until, goes_on.price) == (ten, 0.0, 3.6)
    steps = [(0, 1.2), (10, 2.4), (20, 0.0), (30, 3.6)]
    assert goes_on.prices == tuple((ten + 60 * minute, price) for minute, price in steps)
    assert bill["gone"].until == ten + 40 * 60
    assert bill["closed"].until == ten + 10 * 60
    charges = {"goes on": 50 - 30, "gone": 40 - 10, "closed": 0}
    for name, minutes in charges.items():
        over = bill[name].until > 0
        listed = bill[name].on(Instance(name, "t1", "ended" if over else "running"))
        account = Billing("mithril", 99.0)
        account.note([listed])
        found = account.record(listed, None)
        if over:
            found = account.ended(found, ten + 50 * 60)
        before = 10 * 1.2 + (10 * 2.4 if name == "goes on" else 0.0)
        expected = (before + minutes * bill[name].price) / 60
        assert cost_of([found], ten + 50 * 60) == pytest.approx(expected), name


@pytest.mark.parametrize("interface", ["file", "block"])
def test_a_volume_costs_by_the_month_from_its_creation_to_its_deletion(
    paper: Paper, interface: str
) -> None:
    provider = paper.make()
    made = provider.create_volume("data", 20_000, interface)
    assert made.price_per_month == pytest.approx(20_000 * 0.08)
    passes(2.0)
    before = volume_bill(paper)
    cost = volume_cost(provider.list_volumes()[0], clock.now())
    assert cost is not None
    # Mithril tells the time of the creation by whole milliseconds.
    assert before - 1e-5 <= cost <= volume_bill(paper) + 1e-5
    assert before > 1e-3
    provider.delete_volume("data")
    ended = volume_bill(paper)
    passes(0.5)
    assert volume_bill(paper) == ended >= cost


def volume_bill(paper: Paper) -> float:
    return sum(float(each["dollars"]) for each in paper.cloud.volume_bill())
