"""Auctions of the fake Mithril: prices, capacity, machines that are taken away, pauses, the bill."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from flowlite.state import clock
from flowlite.testing.cloud.mithril.box import PaperMithril
from flowlite.testing.cloud.mithril.fleet import SIGNAL
from tests.helpers import eventually
from tests.testing_cloud.mithril_client import TYPE, Client


class Ahead(clock.Source):
    """The times of this machine, and what a test has had pass besides."""

    def __init__(self) -> None:
        self.passed = 0.0

    def since_boot(self) -> float:
        return time.monotonic() + self.passed

    def monotonic(self) -> float:
        return time.monotonic() + self.passed

    def wall(self) -> float:
        return time.time() + self.passed


@pytest.fixture
def ahead() -> Iterator[Ahead]:
    """Time that passes when a test says so: a notice is over neither too early nor too late for it."""
    source = Ahead()
    with clock.running_on(source):
        yield source


@pytest.fixture
def client(ahead: Ahead, mithril: PaperMithril) -> Client:
    return Client(mithril)


def _files(client: Client) -> dict[tuple[str, str], str]:
    cloud = client.cloud
    assert isinstance(cloud, PaperMithril)
    return cloud.ground.files


def test_a_bid_below_the_price_waits_until_the_price_comes_down(client: Client) -> None:
    client.cloud.price(TYPE, 30)
    bid = client.bid()
    client.cloud.auction()
    assert client.status(bid) == "Open"
    client.cloud.price(TYPE, 20)
    assert client.status(bid) == "Allocated"


def test_a_bid_gets_all_its_machines_or_none(client: Client) -> None:
    client.cloud.capacity(TYPE, 3)
    bid = client.bid(instance_quantity=4)
    client.cloud.auction()
    assert (client.status(bid), client.machines(bid)) == ("Open", [])
    client.cloud.capacity(TYPE, 4)
    assert len(client.machines(bid)) == 4


def test_the_higher_bid_wins_and_of_equals_the_older(client: Client) -> None:
    client.cloud.capacity(TYPE, 0)
    older = client.bid("older")
    younger = client.bid("younger")
    higher = client.bid("higher", limit_price="$25.00")
    client.cloud.capacity(TYPE, 4)
    assert [client.status(each) for each in (older, younger, higher)] == [
        "Allocated",
        "Open",
        "Allocated",
    ]
    price = client.get("pricing/current", instance_type=client.type_fid())
    assert price["spot_price_cents"] == 2000
    assert price["available_capacity"] == 0


def test_who_is_outbid_is_told_and_loses_the_machines_and_may_win_new_ones(
    client: Client, ahead: Ahead
) -> None:
    client.cloud.rules(notice_seconds=600)
    bid = client.running()
    old = {each["fid"] for each in client.machines(bid)}
    client.cloud.price(TYPE, 21)
    assert client.status(bid) == "Preempting"
    assert client.get(f"spot/bids/{bid}/status")["status"] == "Preempting"
    assert client.statuses(bid) == {"STATUS_PREEMPTING"}
    ends = client.get(f"instances/{next(iter(old))}/status")["end_time"]
    assert ends
    eventually(lambda: len(_files(client)) == 2)
    signal = _files(client)[next(iter(old)), SIGNAL]
    assert "instance_status: STATUS_PREEMPTING\n" in signal
    assert f'end_time: "{ends}"\n' in signal
    ahead.passed += 600
    client.wait_status(bid, "Open")
    eventually(lambda: client.statuses(bid) == {"STATUS_PREEMPTED"})
    client.cloud.price(TYPE, 20)
    eventually(lambda: "STATUS_RUNNING" in client.statuses(bid))
    fresh = {e["fid"] for e in client.machines(bid) if e["status"] == "STATUS_RUNNING"}
    assert len(fresh) == 2
    assert not fresh & old
    shown = [each["event_type"] for each in client.get(f"spot/bids/{bid}/history")["events"]]
    assert shown == ["Placed", "Allocated", "Preempted", "Allocated"]


def test_who_wins_again_in_time_keeps_the_machines(client: Client) -> None:
    client.cloud.rules(notice_seconds=60)
    bid = client.running()
    client.cloud.price(TYPE, 21)
    eventually(lambda: len(_files(client)) == 2)
    client.cloud.price(TYPE, 20)
    assert client.status(bid) == "Allocated"
    assert client.statuses(bid) == {"STATUS_RUNNING"}
    eventually(lambda: not _files(client))


def test_who_wins_again_while_the_machines_start_gets_them_running(client: Client) -> None:
    client.cloud.rules(notice_seconds=60, boot_seconds=1.0)
    bid = client.bid()
    client.cloud.auction()
    client.cloud.price(TYPE, 21)
    assert client.status(bid) == "Preempting"
    client.cloud.price(TYPE, 20)
    eventually(lambda: client.statuses(bid) == {"STATUS_RUNNING"})
    assert all(each["ssh_destination"] for each in client.machines(bid))
    assert all(each["charged"] for each in client.cloud.instances())


def test_a_test_takes_machines_away_whatever_the_price(client: Client) -> None:
    bid = client.running()
    one = client.machines(bid)[0]["fid"]
    client.cloud.preempt([one], 0.1, again_after=600)
    client.wait_status(bid, "Open")
    client.cloud.auction()
    assert client.status(bid) == "Open"
    assert client.statuses(bid) <= {"STATUS_STOPPING", "STATUS_PREEMPTED"}


def test_ending_a_bid_that_is_being_preempted_ends_it(client: Client, ahead: Ahead) -> None:
    bid = client.running()
    client.cloud.preempt([bid], 600)
    client.http.delete(f"/v2/spot/bids/{bid}")
    eventually(lambda: client.statuses(bid) == {"STATUS_TERMINATED"})
    ahead.passed += 600
    client.cloud.auction()
    assert client.status(bid) == "Terminated"


def test_a_machine_moves_to_another_place_under_a_new_id(client: Client, ahead: Ahead) -> None:
    bid = client.running()
    old = client.machines(bid)[0]["fid"]
    client.cloud.relocate(old, 600)
    assert client.get(f"spot/bids/{bid}/status")["status"] == "Relocating"
    assert client.status(bid) == "Allocated"
    ahead.passed += 600
    eventually(lambda: client.get(f"instances/{old}/status")["status"] == "STATUS_REPLACED")
    eventually(lambda: [e["status"] for e in client.machines(bid)].count("STATUS_RUNNING") == 2)
    assert len(client.machines(bid)) == 3


def test_a_pause_gives_the_machines_back_and_costs_nothing(client: Client) -> None:
    bid = client.running()
    paused = client.http.patch(f"/v2/spot/bids/{bid}", json={"paused": True})
    assert paused.json()["status"] == "Paused"
    eventually(lambda: client.statuses(bid) == {"STATUS_PAUSED"})
    assert not any(each["charged"] for each in client.cloud.instances())
    client.cloud.auction()
    assert client.status(bid) == "Paused"
    client.http.patch(f"/v2/spot/bids/{bid}", json={"paused": False})
    eventually(lambda: client.statuses(bid) == {"STATUS_TERMINATED", "STATUS_RUNNING"})


def test_another_limit_price_counts_at_the_next_auction(client: Client) -> None:
    client.cloud.price(TYPE, 21)
    bid = client.bid()
    changed = client.http.patch(f"/v2/spot/bids/{bid}", json={"limit_price": "$22.50"})
    assert changed.json()["limit_price"] == "$22.50"
    client.wait_status(bid, "Allocated")
    refused = client.http.patch(f"/v2/spot/bids/{bid}", json={"limit_price": "$0.10"})
    assert (refused.status_code, "below minimum" in refused.text) == (400, True)


def test_the_bill_follows_the_price(client: Client) -> None:
    bid = client.running(limit_price="$40.00", instance_quantity=1)
    client.cloud.price(TYPE, 30)
    bill = client.of_project("instances/pricing/history", bid_fid=bid)["instances"][0]["events"]
    assert [each["price_cents"] for each in bill] == [1600, 3000]
    assert (bill[0]["end_time"], bill[1]["end_time"]) == (bill[1]["start_time"], None)
    history = client.get("pricing/history", instance_types=client.type_fid())["series"][0]
    assert history["spot_prices"] == ["$16.00", "$30.00"]


def test_a_machine_that_dies_is_shown_and_its_bid_lives_on(client: Client) -> None:
    bid = client.running()
    one = client.machines(bid)[0]["fid"]
    client.cloud.die(one)
    assert client.get(f"instances/{one}/status")["status"] == "STATUS_ERROR"
    assert client.status(bid) == "Allocated"
    other = client.machines(bid)[1]["fid"]
    client.cloud.die(other, state="STATUS_RUNNING")
    charged = {each["id"]: each["charged"] for each in client.cloud.instances()}
    assert charged == {one: False, other: True}


@pytest.mark.parametrize(("how", "status"), [("error", "STATUS_ERROR"), ("die", "STATUS_ERROR")])
def test_a_machine_that_starts_oddly(client: Client, how: str, status: str) -> None:
    client.cloud.boots(how)
    bid = client.bid(instance_quantity=1)
    eventually(lambda: client.statuses(bid) == {status})


def test_a_new_day_knows_of_nothing_but_the_account(client: Client) -> None:
    client.running()
    client.cloud.reset()
    assert client.of_project("spot/bids")["data"] == []
    assert client.of_project("instances")["data"] == []
    assert client.running()
