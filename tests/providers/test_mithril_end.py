"""Bids that lose their machines, their end, and the listing. The API is whole, the machines on paper."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import (
    PermissionRefused,
    ProviderError,
)
from flowlite.provider import Instance, Plan
from flowlite.supervise.money.billing import Billing
from flowlite.supervise.money.cost import cost_of
from provider_adapters.mithril import bids, nodekey
from provider_adapters.mithril.context import deadline_seconds
from provider_adapters.mithril.rest.client import MithrilApi
from tests.providers.mithril_on_paper import H100, TASK, Paper, eventually

# Machines that are taken away


def test_preempted_machines_have_ended_and_say_so(paper: Paper) -> None:
    found = paper.launch(paper.intend())
    paper.cloud.preempt([found[0].data["bid"]], 0.1, again_after=60)

    def gone() -> list[Instance] | None:
        listed = paper.provider.list_instances(TASK)
        ended = [each for each in listed if each.state == "ended"]
        return listed if ended else None

    listed = eventually(gone, "they are gone")
    ended = [each for each in listed if each.state == "ended"]
    assert {each.id for each in ended} == {each.id for each in found}
    assert all(each.preempted and "preempted" in each.why for each in ended)
    left = [each for each in listed if each.state != "ended"]
    assert [(each.state, each.id) for each in left] == [("starting", found[0].data["bid"])]


def test_what_replaces_them_ends_the_bid_that_lost_them(paper: Paper) -> None:
    first = paper.launch(paper.intend())
    paper.cloud.preempt([first[0].data["bid"]], 0.05, again_after=60)
    eventually(
        lambda: all(i.id not in {f.id for f in first} for i in paper.alive()) or None,
        "they are gone",
    )
    second = paper.launch(paper.intend(number=2))
    assert {each.data["bid"] for each in second} != {first[0].data["bid"]}
    assert [bid["fid"] for bid in paper.live()] == [second[0].data["bid"]]
    assert {each.id for each in paper.alive()} == {each.id for each in second}


def test_one_that_is_moved_away_takes_the_gang_along(paper: Paper) -> None:
    found = paper.launch(paper.intend(3))
    paper.cloud.relocate(found[1].id, 0.05)

    def gone() -> bool | None:
        mine = {each.id for each in found}
        sound = {each.id for each in paper.alive() if each.state != "ending"}
        return None if mine & sound else True

    eventually(gone, "none of the gang may be used again")
    listed = {each.id: each for each in paper.provider.list_instances(TASK)}
    assert all(listed[each.id].preempted for each in found)
    # The others are there, and charged, until the bid is ended: their logs can still be had.
    states = [listed[each.id].state for each in found]
    assert states == ["ending", "ended", "ending"]
    paper.launch(paper.intend(3, number=2))
    assert len(paper.live()) == 1


@pytest.mark.parametrize("moment", ["before its bids are asked for", "after that"])
def test_a_launch_that_is_closed_elsewhere_during_a_listing_is_listed_as_it_ended(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    found = paper.launch(paper.intend())
    paper.provider.terminate(found)
    ledger = paper.provider._place.ledger
    launches, fetch = ledger.launches, bids.fetch

    def close_it(now: str) -> None:
        if moment == now:
            monkeypatch.setattr(ledger, "launches", launches)
            monkeypatch.setattr(bids, "fetch", fetch)
            listing = paper.make().list_instances
            eventually(lambda: (listing(TASK) and launches()[0].ended) or None, "it is closed")

    def read_launches(*words: Any, **options: Any) -> Any:
        known = launches(*words, **options)
        close_it("before its bids are asked for")
        return known

    def fetch_bids(*words: Any) -> Any:
        known = eventually(
            lambda: {fid: bid for fid, bid in fetch(*words).items() if bid and bid.over} or None,
            "the bid is over",
        )
        close_it("after that")
        return known

    monkeypatch.setattr(ledger, "launches", read_launches)
    monkeypatch.setattr(bids, "fetch", fetch_bids)
    listed = paper.provider.list_instances(TASK)
    assert listed == paper.make().list_instances(TASK)
    assert {(each.id, each.state) for each in listed} == {(each.id, "ended") for each in found}


def test_one_that_dies_is_no_preemption(paper: Paper) -> None:
    found = paper.launch(paper.intend())
    paper.cloud.die(found[0].id)
    listed = {each.id: each for each in paper.provider.list_instances(TASK)}
    assert (listed[found[0].id].state, listed[found[0].id].preempted) == ("ended", False)
    assert "STATUS_ERROR" in listed[found[0].id].why
    paper.end()
    assert paper.live() == []


def test_a_bid_that_somebody_paused_is_not_bid_for_anew(paper: Paper) -> None:
    first = paper.launch(paper.intend())
    paper.change(paused=True)
    eventually(
        lambda: "ended" in {i.state for i in paper.provider.list_instances(TASK)} or None, "gone"
    )
    again = paper.intend(number=2)
    assert "is paused" in paper.waiting(again)
    assert [bid["fid"] for bid in paper.live()] == [first[0].data["bid"]]
    paper.end()
    assert paper.live() == []


# The end


def test_whoever_ends_one_machine_ends_the_bid(paper: Paper) -> None:
    found = paper.launch(paper.intend(3))
    paper.provider.terminate(found[:1])
    eventually(lambda: not paper.alive() or None, "all are gone")
    assert paper.live() == []
    assert set(paper.doors.forgotten) == {each.id for each in found}


def test_ending_again_is_no_error(paper: Paper) -> None:
    found = paper.launch(paper.intend())
    for provider in (paper.provider, paper.provider, paper.make()):
        provider.terminate(found)
    paper.end()
    paper.provider.terminate(found)
    paper.make(paper.home.with_name("other")).terminate(found)


def test_the_cost_is_exact_to_the_cent_and_stays(paper: Paper) -> None:
    found = paper.launch(paper.intend())
    paper.cloud.price(H100, 19.0)
    paper.end()
    listed = paper.make().list_instances(TASK)
    assert {each.id for each in listed} == {each.id for each in found}
    accounts = Billing("mithril", 0.0)
    accounts.note(found)
    rows = [accounts.record(each, None) for each in found]
    accounts.note(listed)
    rows = [accounts.ended(row, time.time()) for row in rows]
    cost = sum(bid["cost"] for bid in paper.cloud.bids())
    assert cost_of(rows, time.time()) == pytest.approx(cost, rel=1e-3)
    before = len(paper.cloud.calls)
    assert paper.provider.list_instances(TASK) == listed
    assert len(paper.cloud.calls) == before, "what has ended is not asked for again"


@pytest.mark.parametrize("status", [500, 429])
def test_an_end_that_fails_is_tried_again(paper: Paper, status: int) -> None:
    found = paper.launch(paper.intend())
    paper.cloud.fault("cancel_bid", status=status, times=5)
    with pytest.raises(ProviderError):
        paper.provider.terminate(found)
    assert paper.alive() != []
    paper.end()
    assert paper.live() == []


def test_a_bid_that_cannot_be_ended_does_not_keep_others_from_it(paper: Paper) -> None:
    bids = []
    for task in (TASK, "tklmnopqrst"):
        found = paper.launch(replace(paper.intend(1), task_id=task, token=f"{task}-launch-1"))
        bids.append(found[0])
    paper.cloud.fault("cancel_bid", status=400, times=-1, match={"bid_fid": bids[0].data["bid"]})
    with pytest.raises(ProviderError):
        paper.provider.terminate(bids)
    (left,) = paper.live()
    assert left["fid"] == bids[0].data["bid"]
    paper.cloud.clear_faults()
    paper.provider.terminate(bids)
    assert paper.live() == []


def test_a_bid_is_ended_though_the_disk_is_full(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is charged until then. That it ends cannot be written down, so that it is ended again later."""
    found = paper.launch(paper.intend(2))

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as here:
        here.setattr("provider_adapters.rented.ledger.write_durably", full)
        with pytest.raises(ProviderError, match="No space left on device"):
            paper.provider.terminate(found)
        assert paper.live() == []
    paper.end()


# The listing


def test_a_task_that_is_not_there_costs_no_call(paper: Paper) -> None:
    before = len(paper.cloud.calls)
    assert paper.provider.list_instances("tnosuchtask") == []
    assert len(paper.cloud.calls) == before


def test_without_a_key_there_is_nothing_to_list(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MITHRIL_API_KEY")
    nobody = paper.make(paper.home.with_name("other"))
    assert nobody.list_instances() == []
    assert nobody.others() == []


def test_without_its_key_a_home_that_has_bids_says_so(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper.launch(paper.intend())
    monkeypatch.delenv("MITHRIL_API_KEY")
    with pytest.raises(PermissionRefused, match="MITHRIL_API_KEY"):
        paper.make().list_instances()


def test_machines_are_not_taken_for_gone_with_a_key_of_another_account(paper: Paper) -> None:
    paper.configure(listing_lag=0.1)
    found = paper.launch(paper.intend())
    launched = time.monotonic()
    eventually(lambda: time.monotonic() - launched > 0.2 or None, "all should be listed")
    # Such a key knows no bid of the other account, and may not use its project.
    for action, status in (("get_bid", 404), ("cancel_bid", 404), ("get_instances", 403)):
        paper.cloud.fault(action, status=status, times=-1)
    with pytest.raises(PermissionRefused, match="does not have access"):
        paper.make().list_instances(TASK)
    with pytest.raises(PermissionRefused, match="does not have access"):
        paper.make().list_instances()
    paper.cloud.clear_faults()
    assert {each.id for each in paper.alive()} == {each.id for each in found}
    assert paper.doors.forgotten == []
    paper.end()


def test_what_the_ledger_has_lost_is_found_by_its_tags(paper: Paper) -> None:
    found = paper.launch(paper.intend())
    for file in (paper.home / "mithril" / "launches").glob("*.json"):
        file.unlink()
    paper.provider = paper.make()
    listed = paper.alive(None)
    assert {each.id for each in listed} == {each.id for each in found}
    assert {each.task_id for each in listed} == {TASK}
    paper.provider.terminate(listed)
    eventually(lambda: not paper.live() or None, "all is gone")
    assert [key["name"] for key in paper.cloud.api_keys() if key["good"]] == ["account"]


def test_another_home_sees_whose_it_is_and_can_end_it(paper: Paper) -> None:
    found = paper.launch(paper.intend(max_run_time_hours=2))
    other = paper.make(paper.home.with_name("other"))
    assert other.list_instances() == []
    listed = other.others()
    assert {each.id for each in listed} == {each.id for each in found}
    data = listed[0].data
    assert "@" in data["owner"]
    assert 2 * 3600 < data["deadline"] - time.time() < 5 * 3600
    # Its machines may have no key, and it is not known what the auction has come to.
    assert (data["stays"], listed[0].cost_at_most) == ("its bid", True)
    assert other.sweep([]) == [], "what is another's is not swept"
    other.terminate(listed)
    eventually(lambda: not paper.live() or None, "all is gone")
    assert paper.provider.others() == []


def test_the_time_of_another_homes_machines_begins_when_they_are_up(paper: Paper) -> None:
    """Its `flow gc` would end a bid early by as long as its machines took to boot: 20 minutes at times."""
    paper.cloud.rules(boot_seconds=3.0)
    asked = time.time()
    paper.launch(paper.intend(max_cost=0.15))
    up = time.time()
    seconds = deadline_seconds(Plan.from_json(paper.intend(max_cost=0.15).plan), 1800.0)
    assert seconds is not None
    assert seconds < 3.0
    other = paper.make(paper.home.with_name("other"))
    found = other.others()
    assert len(found) == 2
    for each in found:
        assert asked + 2.5 < each.data["deadline"] - seconds <= up + 0.5


def test_machines_of_a_bid_that_is_not_listed_yet_are_those_that_were_handed_out(
    paper: Paper,
) -> None:
    found = paper.launch(paper.intend())
    paper.cloud.lag(600.0)
    listed = paper.make().list_instances(TASK)
    assert [(each.id, each.state, each.address) for each in listed] == sorted(
        (each.id, "running", each.address) for each in found
    )


def test_a_listing_that_lags_behind_forgets_nothing(paper: Paper) -> None:
    paper.cloud.lag(0.5)
    intent = paper.intend()
    text = paper.waiting(intent)
    assert text
    assert paper.alive() != [], "it was placed, though no listing has it yet"
    found = paper.launch(intent)
    assert {each.id for each in paper.alive()} <= {each.id for each in found} | {
        found[0].data["bid"]
    }
    paper.provider.terminate(paper.alive())
    assert paper.alive() != [], "the listing still has it"
    paper.end()
    assert paper.live() == []


def test_bids_of_other_programs_are_left_alone(paper: Paper) -> None:
    paper.launch(paper.intend(1))
    (bid,) = paper.live()
    body = {
        **{
            name: bid[name]
            for name in ("project", "region", "instance_type", "launch_specification")
        },
        "limit_price": "$20.00",
        "instance_quantity": 1,
        "name": "somebody-elses",
    }
    paper.request("POST", "/v2/spot/bids", body)
    assert {each.data["bid"] for each in paper.alive(None)} == {bid["fid"]}
    assert paper.make(paper.home.with_name("other")).others() != []
    assert {i.data["bid"] for i in paper.make(paper.home.with_name("other")).others()} == {
        bid["fid"]
    }


def test_machines_that_were_never_handed_out_are_on_the_bill(paper: Paper) -> None:
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.told(intent, "still starting")

    def charged() -> bool | None:
        return all(each.launched_at for each in paper.make().list_instances(TASK)) or None

    eventually(charged, "they are charged while they start")
    over = paper.end()
    assert {each.state for each in over} == {"ended"}
    total = sum(i.price_per_hour * (i.ended_at - i.launched_at) / 3600 for i in over)
    assert total == pytest.approx(sum(bid["cost"] for bid in paper.cloud.bids()), rel=1e-3)


def test_a_bid_that_somebody_ended_before_its_machines_were_ready_is_on_the_bill(
    paper: Paper,
) -> None:
    paper.configure(node_key="script")
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.told(intent, "still starting")
    eventually(
        lambda: all(each.launched_at for each in paper.make().list_instances(TASK)) or None,
        "they are charged",
    )
    paper.request("DELETE", f"/v2/spot/bids/{paper.live()[0]['fid']}")
    # The supervisor is dead. Who comes after it has nothing but the ledger, and asks to end what there is.
    later = paper.make()

    def over() -> list[Instance] | None:
        found = later.list_instances(TASK)
        return found if [each.state for each in found] == ["ended", "ended"] else None

    found = eventually(over, "both are billed")
    total = sum(i.price_per_hour * (i.ended_at - i.launched_at) / 3600 for i in found)
    assert total == pytest.approx(sum(bid["cost"] for bid in paper.cloud.bids()), rel=1e-3)
    assert [key["name"] for key in paper.cloud.api_keys() if key["good"]] == ["account"]
    with pytest.raises(ProviderError, match="was ended by somebody else before"):
        paper.make().launch(intent)


def test_keys_that_another_home_has_left_are_revoked_and_those_of_its_bids_stay(
    paper: Paper,
) -> None:
    paper.launch(paper.intend())
    left = "flow-deadbeef-tzyxwvutsrq-launch-1-1-0a0b0c0d"
    paper.cloud.new_key(left, 86400)
    good = lambda: {key["name"] for key in paper.cloud.api_keys() if key["good"]}  # noqa: E731
    before = good()
    other = paper.make(paper.home.with_name("other"))
    assert other.sweep([]) == []
    told = other.sweep_others(dry_run=True)
    assert (told, good()) == ([f"API key {left} of nodes whose bid has ended"], before)
    assert other.sweep_others() == told
    assert good() == before - {left}
    assert other.sweep_others() == []


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ("/v2/instances/pricing/history", "events", None),
        ("/v2/instances/pricing/history", "events", [{"price_cents": None, "start_time": "2026"}]),
        ("/v2/instances/status/history", "events", [{}]),
        ("/v2/instances", "name", None),
    ],
)
def test_a_field_of_an_unknown_form_takes_no_machines_away(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, path: str, key: str, value: object
) -> None:
    """Any other error than the provider's would count as a defect of flowlite, and fail the task that runs."""
    paper.launch(paper.intend())
    read = MithrilApi._read

    def odd(api: MithrilApi, method: str, at: str, answer: Any) -> Any:
        found = read(api, method, at, answer)
        if at == path:
            for each in found["instances" if "history" in path else "data"]:
                each[key] = value
        return found

    monkeypatch.setattr(MithrilApi, "_read", odd)
    assert [each.state for each in paper.make().list_instances(TASK)] == ["running"] * 2


def test_a_bid_of_an_unknown_form_is_an_error_of_the_provider(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper.launch(paper.intend())
    read = MithrilApi._read

    def odd(api: MithrilApi, method: str, at: str, answer: Any) -> Any:
        found = read(api, method, at, answer)
        return {**found, "instance_quantity": None} if "/v2/spot/bids/" in at else found

    monkeypatch.setattr(MithrilApi, "_read", odd)
    with pytest.raises(ProviderError, match=r"does not know \(TypeError"):
        paper.make().list_instances(TASK)


@pytest.mark.parametrize("status", [401, 403, 503])
def test_nodes_go_on_ending_their_bid_if_the_api_refuses_for_a_while(
    paper: Paper, status: int
) -> None:
    (bid,) = {each.data["bid"] for each in paper.launch(paper.intend())}
    api, hour = paper.provider._place.account.api, time.time() + 3600
    key = nodekey.make(api, "flow-of-a-node", hour, again=False)
    paper.cloud.fault("*", status=status, times=4)
    program = nodekey.program(paper.cloud.url, bid, key["secret"], seconds=10.0)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], timeout=60, check=False)
    assert done.returncode == 0
    assert paper.live() == []


ODD = {
    "no HTTP at all": b"\x15\x03\x01 who is there\r\n\r\n",
    "cut off": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
    "a page of a gateway": b"HTTP/1.1 404 Not Found\r\nContent-Length: 21\r\n\r\ndefault backend - 404",
    "a page that all is well": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
}


@pytest.mark.parametrize("odd", ODD)
def test_nodes_go_on_ending_their_bid_if_something_else_answers_for_the_api(odd: str) -> None:
    """The program is all that is left then: if it gives up, the machine powers off and the bid is charged on."""
    bid = b'{"fid": "bid_1", "status": "Allocated"}'
    own = {
        b"GET": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(bid), bid),
        b"DELETE": b"HTTP/1.1 204 No Content\r\n\r\n",
    }
    said: list[tuple[bytes, bool]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    verb = connection.recv(65536).partition(b" ")[0]
                    is_odd = len(said) < 4
                    said.append((verb, is_odd))
                    connection.sendall(ODD[odd] if is_odd else own[verb])

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        program = nodekey.program(url, "bid_1", "a-key", seconds=10.0)
        done = subprocess.run([sys.executable, "-I", "-S", "-c", program], timeout=60, check=False)
        server.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 0
    assert said[-1] == (b"DELETE", False), said
