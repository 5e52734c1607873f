"""Bids of the fake Mithril: who is taken, who is refused, how they are listed."""

from __future__ import annotations

from typing import Any

import pytest

from flowlite.testing.cloud.mithril.box import PaperMithril
from tests.helpers import eventually
from tests.testing_cloud.mithril_client import Client


@pytest.fixture
def client(mithril: PaperMithril) -> Client:
    return Client(mithril)


def test_a_bid_wins_its_machines_all_at_once_and_they_start(client: Client) -> None:
    bid = client.bid()
    assert client.get(f"spot/bids/{bid}")["status"] in ("Open", "Allocated")
    eventually(lambda: client.statuses(bid) == {"STATUS_RUNNING"})
    shown = client.get(f"spot/bids/{bid}")
    machines = client.machines(bid)
    assert shown["status"] == "Allocated"
    assert sorted(shown["instances"]) == sorted(each["fid"] for each in machines)
    assert {each["name"] for each in machines} == {"one-1", "one-2"}
    assert len({each["private_ip"] for each in machines}) == 2
    assert all(each["ssh_destination"] for each in machines)
    seen = client.of_project("instances/status/history", bid_fid=bid)["instances"]
    assert [event["status"] for event in seen[0]["events"]] == [
        "STATUS_NEW",
        "STATUS_CONFIRMED",
        "STATUS_INITIALIZING",
        "STATUS_STARTING",
        "STATUS_RUNNING",
    ]


def test_a_machine_has_no_address_to_reach_it_before_it_runs(client: Client) -> None:
    client.cloud.odd_boots("never", 2)
    bid = client.bid()
    eventually(lambda: client.statuses(bid) == {"STATUS_STARTING"})
    assert [each["ssh_destination"] for each in client.machines(bid)] == [None, None]
    assert client.cloud.bids()[0]["cost"] == 0


def test_the_end_of_a_bid_is_the_end_of_its_machines_and_of_what_they_cost(client: Client) -> None:
    bid = client.running()
    assert client.http.delete(f"/v2/spot/bids/{bid}").status_code == 204
    assert client.get(f"spot/bids/{bid}")["deactivated_at"]
    eventually(lambda: client.statuses(bid) == {"STATUS_TERMINATED"})
    assert not client.cloud.live_bids()
    assert not client.cloud.ground.running  # type: ignore[attr-defined]
    bills = client.of_project("instances/pricing/history", bid_fid=bid)["instances"]
    assert [len(bill["events"]) for bill in bills] == [1, 1]
    assert all(bill["events"][0]["end_time"] for bill in bills)
    again = client.http.delete(f"/v2/spot/bids/{bid}")
    assert again.status_code == 422
    assert again.json()["detail"][0]["msg"] == "Bid is already terminated"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"limit_price": "$0.50"}, "price below minimum"),
        ({"region": "eu-central1-a", "instance_type": "it_nobody"}, "not found"),
        ({"launch_specification": {"ssh_keys": []}}, "no ssh keys"),
        ({"launch_specification": {"ssh_keys": ["sshkey_x"]}}, "not found in project"),
        ({"launch_specification": {"volumes": ["vol_x"]}}, "volume vol_x not found"),
        ({"launch_specification": {"startup_script": "x" * 10_001}}, "10000 characters"),
    ],
)
def test_what_is_against_the_rules_is_refused_with_a_sentence(
    client: Client, changes: dict[str, Any], words: str
) -> None:
    reply = client.try_bid(**changes)
    assert reply.status_code == 400
    assert words in reply.json()["detail"].lower()
    assert not client.cloud.bids()


def test_a_script_of_just_the_limit_is_taken(client: Client) -> None:
    assert client.bid(launch_specification={"startup_script": "x" * 10_000})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"limit_price": "cheap"}, ["limit_price"]),
        ({"instance_quantity": 0}, ["instance_quantity"]),
        ({"instance_quantity": "2"}, ["instance_quantity"]),
        ({"name": None}, ["name"]),
        ({"launch_specification": {"ssh_keys": "mine"}}, ["launch_specification", "ssh_keys"]),
        (
            {"launch_specification": {"volumes": ["vol_1", 2]}},
            ["launch_specification", "volumes", 1],
        ),
    ],
)
def test_fields_that_are_not_of_the_form_are_listed(
    client: Client, changes: dict[str, Any], field: list[str | int]
) -> None:
    reply = client.try_bid(**changes)
    assert reply.status_code == 422
    assert [each["loc"] for each in reply.json()["detail"]] == [["body", *field]]


def test_a_region_that_the_type_does_not_stand_in_is_refused(client: Client) -> None:
    wish = client.wish() | {"region": "eu-central1-a"}
    reply = client.http.post("/v2/spot/bids", json=wish)
    assert (reply.status_code, "eu-central1-a" in reply.text) == (400, True)


def test_a_name_is_taken_as_long_as_its_bid_lives(client: Client) -> None:
    first = client.bid("twice")
    reply = client.try_bid("twice")
    assert (reply.status_code, "already used" in reply.json()["detail"]) == (400, True)
    client.http.delete(f"/v2/spot/bids/{first}")
    second = client.bid("twice")
    named = client.of_project("spot/bids", name="twice")["data"]
    assert {each["fid"]: each["status"] == "Terminated" for each in named} == {
        first: True,
        second: False,
    }


def test_names_need_not_be_unique_if_a_test_says_so(client: Client) -> None:
    client.cloud.rules(unique_names=False)
    assert client.bid("twice") != client.bid("twice")


@pytest.mark.parametrize("honoured", [True, False])
def test_an_idempotency_key_counts_if_a_test_says_so(client: Client, honoured: bool) -> None:
    client.cloud.rules(unique_names=False, honours_idempotency_keys=honoured)
    headers = {"Idempotency-Key": "flow-bid-1"}
    wish = client.wish()
    made = {
        client.http.post("/v2/spot/bids", json=wish, headers=headers).json()["fid"]
        for _ in range(2)
    }
    assert len(made) == (1 if honoured else 2)


def test_a_quota_is_named_with_what_is_used_of_it(client: Client) -> None:
    client.cloud.quota("h100-80gb.sxm.8x", 3)
    client.bid("first")
    reply = client.try_bid("second")
    assert reply.status_code == 400
    assert "quota" in reply.json()["detail"]
    assert "2 of 3" in reply.json()["detail"]
    listed = client.of_project("quotas")
    mine = next(each for each in listed if each["instance_type"] == client.type_fid())
    assert (mine["used_quantity"], mine["total_quantity"]) == (2, 3)


def test_a_listing_comes_in_pages_that_miss_nothing_while_bids_are_made(client: Client) -> None:
    client.cloud.capacity("*", 0)
    made = {client.bid(f"bid-{number}", instance_quantity=1) for number in range(7)}
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = client.of_project("spot/bids", **query)
        seen += [each["fid"] for each in page["data"]]
        client.bid(f"late-{len(seen)}", instance_quantity=1)
        if page["next_cursor"] is None:
            break
        query["next_cursor"] = page["next_cursor"]
    assert made <= set(seen)
    assert len(seen) == len(set(seen)) == 7


def test_a_page_is_small_if_nobody_says_how_large(client: Client) -> None:
    client.cloud.rules(page_size=2)
    for number in range(3):
        client.bid(f"bid-{number}", instance_quantity=1)
    page = client.of_project("spot/bids")
    assert len(page["data"]) == 2
    assert page["next_cursor"]


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"status": "Lost"}, {"sort_by": "name"}]
)
def test_a_listing_with_wrong_words_is_refused(client: Client, query: dict[str, Any]) -> None:
    reply = client.http.get("/v2/spot/bids", params=query)
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["query", next(iter(query))]


def test_a_cursor_that_nobody_gave_is_refused(client: Client) -> None:
    reply = client.http.get("/v2/spot/bids", params={"next_cursor": "zzz"})
    assert reply.status_code == 400


def test_the_order_of_ids_is_not_that_of_the_machines_names(client: Client) -> None:
    bid = client.running(instance_quantity=8)
    machines = client.machines(bid)
    by_id = [each["name"] for each in sorted(machines, key=lambda each: each["fid"])]
    # One time in 40,320 it is so by chance.
    assert by_id != [f"one-{number}" for number in range(1, 9)]
