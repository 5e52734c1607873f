"""What goes wrong on order with the fake Mithril."""

from __future__ import annotations

import signal
import subprocess
import sys

import httpx
import pytest

from flowlite.testing.cloud.mithril.box import PaperMithril
from tests.helpers import eventually
from tests.testing_cloud.mithril_client import Client

_POST = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), json.loads(sys.argv[2]))
print("asking", flush=True)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)
print("answered", flush=True)
"""


@pytest.fixture
def client(mithril: PaperMithril) -> Client:
    return Client(mithril)


def test_too_many_requests_come_with_the_time_to_wait(client: Client) -> None:
    client.cloud.fault("get_bids", status=429, retry_after=3, times=2)
    for _ in range(2):
        reply = client.http.get("/v2/spot/bids")
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
        assert reply.json() == {"detail": "Too many requests"}
    assert client.get("spot/bids")["data"] == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_of_the_server_says_nothing_of_the_effect(client: Client, when: str) -> None:
    wish = client.wish()
    client.cloud.fault("create_bid", status=503, when=when)
    reply = client.http.post("/v2/spot/bids", json=wish)
    assert reply.status_code == 503
    assert reply.headers["content-type"] == "text/html"
    assert len(client.cloud.bids()) == (1 if when == "after" else 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_time_out_says_nothing_of_the_effect(client: Client, when: str) -> None:
    wish = client.wish()
    client.cloud.fault("create_bid", hang=10.0, when=when)
    with pytest.raises(httpx.ReadTimeout):
        client.http.post("/v2/spot/bids", json=wish, timeout=0.1)
    assert len(client.cloud.bids()) == (1 if when == "after" else 0)
    client.cloud.fault("create_bid", hang=0.01, when=when)
    with pytest.raises(httpx.RemoteProtocolError):
        client.http.post("/v2/spot/bids", json=wish | {"name": "two"})


def test_a_fault_is_for_the_calls_that_fit(client: Client) -> None:
    bids = [client.bid("one"), client.bid("two")]
    client.cloud.fault(
        "cancel_bid", code="no such luck", status=409, match={"bid_fid": bids[1]}, times=-1
    )
    replies = [client.http.delete(f"/v2/spot/bids/{bid}") for bid in bids]
    assert [reply.status_code for reply in replies] == [204, 409]
    assert replies[1].json() == {"detail": "no such luck"}
    client.cloud.clear_faults()
    assert client.http.delete(f"/v2/spot/bids/{bids[1]}").status_code == 204


def test_listings_are_behind_and_single_things_are_not(client: Client) -> None:
    client.cloud.lag(0.5)
    bid = client.bid()
    assert client.of_project("spot/bids", name="one")["data"] == []
    assert client.get(f"spot/bids/{bid}")["name"] == "one"
    eventually(lambda: client.of_project("spot/bids", name="one")["data"])
    client.http.delete(f"/v2/spot/bids/{bid}")
    assert client.of_project("spot/bids")["data"][0]["status"] != "Terminated"
    eventually(lambda: client.of_project("spot/bids")["data"][0]["status"] == "Terminated")


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_caller_is_killed_before_or_after_the_effect(client: Client, when: str) -> None:
    wish = client.http.build_request("POST", "/v2/spot/bids", json=client.wish())
    client.cloud.kill_client("create_bid", when)
    headers = '{"Authorization": "%s", "Content-Type": "application/json"}'
    caller = subprocess.run(
        [
            sys.executable,
            "-c",
            _POST,
            str(wish.url),
            headers % client.http.headers["authorization"],
        ],
        input=wish.content,
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert (caller.returncode, caller.stdout) == (-signal.SIGKILL, b"asking\n")
    assert len(client.cloud.bids()) == (1 if when == "after" else 0)


def test_every_call_is_written_down_without_secrets(client: Client) -> None:
    client.bid("seen")
    action, parameters = client.cloud.calls[-1]
    assert (action, parameters["name"], parameters["limit_price"]) == (
        "create_bid",
        "seen",
        "$20.00",
    )
    assert client.cloud.facts()["api_key"] not in str(client.cloud.calls)


def test_what_is_no_call_of_the_api_is_not_found(client: Client) -> None:
    assert client.http.get("/marketplace/v1/regions").json() == {"detail": "Not Found"}
    assert client.http.put("/v2/spot/bids").status_code == 404
    reply = client.http.post("/v2/spot/bids", content=b"{not json")
    assert reply.status_code == 422


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"what": "price", "type": "abacus", "dollars": 1, "region": ""}, "h100-80gb.sxm.8x"),
        ({"what": "rules", "laggard": 1}, "lag"),
        ({"what": "odd_boots", "how": "slowly"}, "never"),
        ({"what": "die", "id": "inst_x", "state": "dead"}, "STATUS_ERROR"),
    ],
)
def test_an_order_that_cannot_be_is_refused_with_what_could(
    client: Client, order: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        client.cloud.ask(**order)  # type: ignore[arg-type]
