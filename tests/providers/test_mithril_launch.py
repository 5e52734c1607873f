"""Bids: placed once whatever happens, waited for, lost, bid anew, ended. The API is whole, the machines on paper."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from flowlite.api.adapters import settings_here
from flowlite.errors import (
    NodeUnreachable,
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
)
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.state import clock
from provider_adapters.mithril import MithrilProvider
from provider_adapters.mithril.rest import client
from provider_adapters.mithril.rest.client import MithrilApi
from tests.providers.closed_lid import closed_lid
from tests.providers.mithril_on_paper import H100, TASK, Paper, eventually

# The way it should go


def test_a_gang_is_one_bid(paper: Paper) -> None:
    intent = paper.intend(3, max_price_per_hour=30.0)
    found = paper.launch(intent)
    (bid,) = paper.live()
    assert bid["instance_quantity"] == 3
    assert bid["limit_price"] == "$23.00"
    assert {each.id for each in found} == set(bid["instances"])
    assert [each.id for each in found] == sorted(each.id for each in found)
    assert {each.data["bid"] for each in found} == {bid["fid"]}
    assert {each.address for each in found} == {i["address"] for i in paper.cloud.instances()}
    assert all(Instance.from_json(json.loads(json.dumps(i.to_json()))) == i for i in found)


def test_the_same_token_gives_the_same_machines_to_whoever_asks(paper: Paper) -> None:
    intent = paper.intend()
    found = paper.launch(intent)
    assert paper.provider.launch(intent) == found
    assert paper.make().launch(intent) == found
    assert paper.calls("create_bid") == 1


def test_the_startup_script_has_no_key_of_the_account(paper: Paper) -> None:
    paper.launch(paper.intend())
    (bid,) = paper.live()
    script = bid["launch_specification"]["startup_script"]
    assert len(script) <= 10_000
    assert "fkey_" not in script
    assert paper.cloud.facts()["api_key"] not in script
    assert f'"task": "{TASK}"' in script


def test_nothing_secret_stays_in_the_ledger(paper: Paper) -> None:
    paper.launch(paper.intend())
    files = list((paper.home / "mithril" / "launches").glob("*.json"))
    assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"]
    text = files[0].read_text()
    assert "PRIVATE KEY" not in text
    assert "fkey_" not in text


def test_our_ssh_key_is_registered_once_and_found_by_its_content(paper: Paper) -> None:
    paper.launch(paper.intend())
    paper.launch(paper.intend(1, number=1, task="tzzzzzzzzzz"))
    assert paper.calls("create_ssh_key") == 1
    assert paper.provider.sweep([TASK, "tzzzzzzzzzz"]) == [], "live tasks need it"
    paper.end("tzzzzzzzzzz")
    assert paper.provider.sweep([]) == [
        f"API key {paper.live()[0]['name']} of nodes whose bid has ended"
    ], "a bid still needs the SSH key"
    paper.end()
    (told,) = paper.provider.sweep([], dry_run=True)
    assert told.startswith("SSH key flow-")
    assert paper.provider.sweep([]) == [told]
    assert paper.provider.sweep([]) == []


def test_tasks_that_register_our_ssh_key_at_once_all_have_it(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first calls of a sweep do: Mithril refuses a name that another one has just taken."""
    other, intent, beside = paper.make(), paper.intend(), paper.intend(task="tother00000")
    post = MithrilApi.post
    found: list[Instance] = []

    def after_the_other(api: MithrilApi, path: str, body: Any) -> Any:
        if path == "/v2/ssh-keys" and not found:
            monkeypatch.setattr(MithrilApi, "post", post)
            found.extend(paper.launch(beside, other))
        return post(api, path, body)

    monkeypatch.setattr(MithrilApi, "post", after_the_other)
    assert len(paper.launch(intent)) == len(found) == 2
    assert paper.calls("create_ssh_key") == 2


def test_our_ssh_key_may_be_swept_just_before_a_bid_is_placed(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a `flow` command in the background, which has looked when the launch was not written down yet."""
    intent, post = paper.intend(), MithrilApi.post
    swept: list[str] = []

    def after_it_is_swept(api: MithrilApi, path: str, body: Any) -> Any:
        if path == "/v2/spot/bids" and not swept:
            swept.extend(body["launch_specification"]["ssh_keys"])
            paper.request("DELETE", f"/v2/ssh-keys/{swept[0]}")
        return post(api, path, body)

    monkeypatch.setattr(MithrilApi, "post", after_it_is_swept)
    assert len(paper.launch(intent)) == 2
    assert paper.live()[0]["launch_specification"]["ssh_keys"] != swept


def test_few_calls_are_made_and_none_per_node(paper: Paper) -> None:
    paper.cloud.capacity(H100, 80)

    def calls(count: int, task: str) -> int:
        before = len(paper.cloud.calls)
        paper.launch(paper.intend(count, task=task))
        paper.end(task)
        return len(paper.cloud.calls) - before

    calls(1, "taaaaaaaaaa")
    assert calls(64, "tbbbbbbbbbb") < 40


# The nodes' key


def test_all_machines_get_one_key_that_is_revoked_with_the_bid(paper: Paper) -> None:
    paper.launch(paper.intend(3, max_run_time_hours=1))
    assert len(paper.doors.ran) == 3
    (bid,) = paper.live()
    assert all(f"/{bid['fid']}" in program.decode() for _, program in paper.doors.ran)
    assert not any("fkey_" in word for argv, _ in paper.doors.ran for word in argv)
    assert paper.calls("create_api_key") == 1
    apart = {
        re.findall(r"^APART = .*", program.decode(), re.M)[0] for _, program in paper.doors.ran
    }
    assert len(apart) == 3, "one after the other"
    key = keys(paper)[bid["name"]]
    assert key["good"]
    hours = (when(key["expires_at"]) - time.time()) / 3600
    assert 1.0 < hours < 6.0, "it outlives the deadline, and not by much"
    paper.end()
    assert not keys(paper)[bid["name"]]["good"]


@pytest.mark.parametrize(
    "cap",
    [{"max_run_time_hours": 9000}, {"max_run_time_hours": 10**9}, {"max_cost": 1e6}],
    ids=str,
)
def test_a_cap_that_is_years_away_keeps_no_machines_from_their_key(
    paper: Paper, cap: dict[str, float]
) -> None:
    """Mithril refuses keys of more than a year."""
    paper.launch(paper.intend(**cap))
    (bid,) = paper.live()
    days = (when(keys(paper)[bid["name"]]["expires_at"]) - time.time()) / 86400
    assert 340 < days < 365


def test_a_clock_that_is_behind_does_not_shorten_the_life_of_the_key(paper: Paper) -> None:
    # As after a pause of a virtual machine, which its own clock knows nothing of.
    offset = time.time() - clock.since_boot() - 86400.0
    (paper.home / clock.FILE).write_text(json.dumps({"boot": clock.boot(), "offset": offset}))
    paper.launch(paper.intend(3, max_run_time_hours=1))
    (bid,) = paper.live()
    key = keys(paper)[bid["name"]]
    assert key["good"]
    assert when(key["expires_at"]) > time.time() + 3600.0
    paper.end()


def test_without_any_cap_the_key_still_expires(paper: Paper) -> None:
    paper.launch(paper.intend(1))
    (bid,) = paper.live()
    assert when(keys(paper)[bid["name"]]["expires_at"]) < time.time() + 31 * 86400


def test_no_key_where_none_is_wanted(paper: Paper) -> None:
    paper.configure(node_key=False)
    paper.launch(paper.intend())
    assert paper.doors.ran == []
    assert paper.calls("create_api_key") == 0


def test_a_key_in_the_script_is_there_before_anybody_meets_the_machines(paper: Paper) -> None:
    paper.configure(node_key="script")
    paper.launch(paper.intend(2, max_run_time_hours=1))
    assert paper.doors.ran == [], "nothing is left to bring"
    (bid,) = paper.live()
    script = bid["launch_specification"]["startup_script"]
    assert len(script) <= 10_000
    assert paper.cloud.facts()["api_key"] not in script
    (made,) = (key for key in paper.cloud.api_keys() if key["name"] != "account")
    assert made["good"]
    assert f"name={bid['name']}" in script
    subprocess.run(["sh", "-n"], input=script.encode(), check=True)
    (launch,) = (paper.home / "mithril" / "launches").glob("*.json")
    assert "fkey_" not in launch.read_text(), "it was kept for as long as the bid might be repeated"
    paper.end()
    assert not any(key["good"] for key in paper.cloud.api_keys() if key["name"] != "account")


@pytest.mark.parametrize("action", ["create_api_key", "create_bid"])
def test_a_key_in_the_script_is_the_same_when_the_bid_is_repeated(
    paper: Paper, action: str
) -> None:
    paper.configure(node_key="script")
    paper.cloud.fault(action, status=502, when="after")
    paper.launch(paper.intend())
    (bid,) = paper.live()
    script = bid["launch_specification"]["startup_script"]
    good = [key for key in paper.cloud.api_keys() if key["good"] and key["name"] != "account"]
    assert [key["snippet"].rstrip(".") in script for key in good] == [True]


@pytest.mark.parametrize("node_key", [True, "script"])
def test_all_keys_that_were_ever_made_are_not_listed_for_a_launch(
    paper: Paper, node_key: bool | str
) -> None:
    """The list has one for each bid of a year, without pages, and is long."""
    paper.configure(node_key=node_key)
    paper.launch(paper.intend())
    paper.end()
    assert paper.calls("create_api_key") == 1
    assert paper.calls("get_api_keys") == 0


def test_a_key_whose_secret_got_lost_is_revoked_and_made_anew(paper: Paper) -> None:
    paper.cloud.fault("create_api_key", status=502, when="after")
    paper.launch(paper.intend())
    (bid,) = paper.live()
    mine = [key for key in paper.cloud.api_keys() if key["name"] == bid["name"]]
    assert [key["good"] for key in mine] == [False, True]


def test_an_account_that_may_not_make_keys_is_told_how_to_go_without(paper: Paper) -> None:
    paper.cloud.fault("create_api_key", status=403, message="no keys for you")
    with pytest.raises(ProviderError, match=r"no keys for you.*node_key = false"):
        paper.launch(paper.intend())
    eventually(lambda: not paper.live() or None, "the bid was ended")


def keys(paper: Paper) -> dict[str, Any]:
    return {key["name"]: key for key in paper.cloud.api_keys()}


def when(text: str) -> float:
    from provider_adapters.mithril.rest.requests import unix

    return unix(text) or 0.0


# Answers that get lost


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("trouble", [{"status": 500}, {"status": 504}, {"hang": 0.01}])
@pytest.mark.parametrize("unique", [True, False])
def test_a_lost_answer_is_looked_up(
    paper: Paper, when: str, trouble: dict[str, Any], unique: bool
) -> None:
    paper.cloud.rules(unique_names=unique)
    paper.cloud.fault("create_bid", when=when, **trouble)
    found = paper.launch(paper.intend())
    assert len(found) == 2
    assert [bid["fid"] for bid in paper.live()] == [found[0].data["bid"]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_is_not_said_to_be_gone_while_that_is_not_known(paper: Paper, when: str) -> None:
    paper.cloud.rules(boot_seconds=600)
    paper.cloud.fault("create_bid", status=500, when=when)
    intent = paper.intend()
    assert "looked up" in paper.waiting(intent)
    assert [each.state for each in paper.make().list_instances(TASK)] == ["starting"] * (
        1 if when == "before" else len(paper.alive())
    )
    assert paper.alive() != []


def test_a_request_that_never_arrived_is_given_up_after_the_lag(paper: Paper) -> None:
    paper.configure(listing_lag=0.2)
    paper.cloud.fault("create_bid", status=500, when="before")
    paper.waiting(paper.intend())
    assert paper.end() == []
    assert paper.live() == []


def test_a_bid_that_was_placed_twice_is_ended_once(paper: Paper) -> None:
    """The first request comes through late: after it was looked for in vain, and sent again."""
    paper.cloud.rules(unique_names=False)
    intent = paper.intend()
    paper.cloud.lag(600)
    paper.cloud.fault("create_bid", status=502, when="after")
    paper.waiting(intent)

    def sent_again() -> bool | None:
        paper.waiting(intent)
        return paper.calls("create_bid") == 2 or None

    eventually(sent_again, "it is sent again, since the listing lags behind")
    paper.cloud.lag(0)
    found = paper.launch(intent)
    assert paper.calls("create_bid") == 2
    paper.provider.list_instances(TASK)
    assert len(paper.live()) == 1
    mine = {each.id for each in found}
    eventually(lambda: {i.id for i in paper.alive()} == mine or None, "the other's machines go")
    paper.end()
    assert paper.live() == []


def test_a_conflict_may_be_with_our_own_bid(paper: Paper) -> None:
    """A proxy on the way has sent the request twice: the answer to the second one says that the first has the name."""
    paper.cloud.fault("create_bid", status=409, message="Conflict", when="after")
    found = paper.launch(paper.intend())
    assert [bid["fid"] for bid in paper.live()] == [found[0].data["bid"]]
    paper.end()


@pytest.mark.parametrize("answer", [None, {}, ["bid_1"]])
def test_an_answer_without_the_bid_is_looked_up(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    post, asked = MithrilApi.post, []

    def says_nothing(api: MithrilApi, path: str, body: Any) -> Any:
        made = post(api, path, body)
        asked.append(path)
        return answer if path == "/v2/spot/bids" else made

    monkeypatch.setattr(MithrilApi, "post", says_nothing)
    found = paper.launch(paper.intend())
    assert [bid["fid"] for bid in paper.live()] == [found[0].data["bid"]]
    assert asked.count("/v2/spot/bids") == 1


@pytest.mark.parametrize("refusal", ["name", "quota", "payment", "throttled"])
def test_a_repeated_request_that_is_refused_says_nothing_of_the_first(
    paper: Paper, refusal: str
) -> None:
    """The first one was carried out, though its answer was lost and no listing shows the bid yet."""
    paper.cloud.rules(unique_names=refusal == "name")
    if refusal == "quota":
        paper.cloud.quota(H100, 2)
    paper.cloud.lag(600)
    paper.cloud.fault("create_bid", status=502, when="after")
    intent = paper.intend()
    paper.waiting(intent)
    if status := {"payment": 402, "throttled": 429}.get(refusal):
        paper.cloud.fault("create_bid", status=status, when="before", retry_after=60)

    def sent_again() -> bool | None:
        paper.waiting(intent)
        return paper.calls("create_bid") >= 2 or None

    eventually(sent_again, "it is sent again, since the listing lags behind")
    assert paper.alive() != []
    paper.cloud.lag(0)
    assert len(paper.launch(intent, paper.make())) == 2
    assert len(paper.live()) == 1
    paper.end()
    assert paper.live() == []


@pytest.mark.parametrize(
    ("action", "when"),
    [
        ("create_ssh_key", "after"),
        ("create_bid", "before"),
        ("create_bid", "after"),
        ("get_instances", "before"),
        ("create_api_key", "after"),
    ],
)
def test_a_launch_that_is_killed_is_finished_by_the_next(
    paper: Paper, action: str, when: str
) -> None:
    intent = paper.intend()
    assert killed_at(paper, intent, action, when)
    found = paper.launch(intent, paper.make())
    assert len(found) == 2
    assert len(paper.live()) == 1
    (bid,) = paper.live()
    assert sum(k["good"] for k in paper.cloud.api_keys() if k["name"] == bid["name"]) == 1
    paper.end()
    assert paper.live() == []
    assert [key["name"] for key in paper.cloud.api_keys() if key["good"]] == ["account"]


@pytest.mark.parametrize(
    ("action", "when"),
    [("create_bid", "before"), ("create_bid", "after"), ("create_api_key", "after")],
)
def test_a_launch_that_is_killed_and_never_taken_up_is_ended(
    paper: Paper, action: str, when: str
) -> None:
    paper.configure(listing_lag=0.3)
    assert killed_at(paper, paper.intend(), action, when)
    paper.provider = paper.make()
    paper.end()
    assert paper.live() == []
    assert paper.alive(None) == []


def killed_at(paper: Paper, intent: LaunchIntent, action: str, when: str) -> bool:
    """Launches in a process of its own, which is killed by that call; whether it was."""
    code = (
        "import json, sys; from pathlib import Path\n"
        "from tests.providers.mithril_on_paper import Paper\n"
        "from flowlite.provider import LaunchIntent\n"
        "Paper(None, Path(sys.argv[1])).launch(LaunchIntent.from_json(json.load(sys.stdin)))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(paper.home)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        paper.cloud.kill_client(action, when, pid=process.pid)
        _, said = process.communicate(json.dumps(intent.to_json()), timeout=90)
    assert process.returncode in (0, -9), said
    return process.returncode == -9


# Refusals


def test_a_quota_stops_at_once_with_its_figures(paper: Paper) -> None:
    paper.cloud.quota(H100, 1)
    with pytest.raises(QuotaExceeded, match=r"0 of 1 instances.*Quota: .*0 of 1 instances used"):
        paper.provider.launch(paper.intend())
    assert paper.alive() == []


def test_no_bid_is_placed_behind_a_jump_host_that_cannot_be_reached(paper: Paper) -> None:
    paper.configure(jump="nobody@nowhere.invalid")
    intent = paper.intend(volumes={"/data": {"name": "data", "size_gb": 10}})
    provider = MithrilProvider(paper.home, settings_here("mithril"))
    with pytest.raises(ProviderError, match=r"^\[mithril\] jump: .*nothing was launched") as caught:
        provider.launch(intent)
    assert "the name 'nowhere.invalid' is not known" in str(caught.value)
    assert not isinstance(caught.value, LaunchPending)
    assert paper.live() == []
    assert provider.list_volumes() == []


def test_a_refused_bid_is_nothing(paper: Paper) -> None:
    paper.cloud.fault("create_bid", status=400, message="No payment method")
    with pytest.raises(ProviderError, match="No payment method"):
        paper.provider.launch(paper.intend())
    assert paper.alive() == []


def test_a_key_that_has_expired_is_named_by_where_it_comes_from(paper: Paper) -> None:
    intent = paper.intend()
    paper.cloud.expire_key()
    with pytest.raises(PermissionRefused, match="from MITHRIL_API_KEY"):
        paper.provider.launch(intent)


def test_a_key_that_was_replaced_while_a_task_runs_is_taken_up(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor runs for longer than the key that it has read."""
    file = paper.home / "keys" / "mithril"
    file.parent.mkdir(mode=0o700)
    file.touch(mode=0o600)
    file.write_text(str(paper.cloud.facts()["api_key"]))
    monkeypatch.delenv("MITHRIL_API_KEY")
    paper.provider = paper.make()
    paper.launch(paper.intend())
    other = paper.cloud.new_key("rotated", 3600.0)
    paper.cloud.expire_key()
    with pytest.raises(PermissionRefused, match=r"keys/mithril"):
        paper.alive()
    file.write_text(other)
    assert len(paper.alive()) == 2
    paper.provider.terminate(paper.alive())
    eventually(lambda: paper.live() == [] or None, "the bid is ended")
    # A bid is placed with it, too.
    assert len(paper.launch(paper.intend(number=2))) == 2
    paper.end()


def test_an_api_that_asks_for_patience_gets_it(paper: Paper) -> None:
    intent = paper.intend()
    paper.cloud.fault("create_bid", status=429, retry_after=60, times=1)
    with pytest.raises(LaunchPending) as caught:
        paper.provider.launch(intent)
    assert caught.value.retry_after == 60
    assert len(paper.launch(intent)) == 2


# Waiting


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_price_that_is_refused_ends_no_bid_that_waits(paper: Paper, status: int) -> None:
    intent = paper.intend()
    paper.cloud.capacity(H100, 0)
    paper.cloud.fault("get_current_prices", status=status, times=1000)
    text = paper.told(intent, "waiting for the auction")
    assert "your limit $24.00" in text
    paper.cloud.capacity(H100, 8)
    assert len(paper.launch(intent)) == 2


@pytest.mark.parametrize("status", [400, 404])
def test_a_plan_without_the_present_price_has_that_of_the_list(paper: Paper, status: int) -> None:
    known = paper.intend().plan["price_per_hour"]
    paper.cloud.fault("get_current_prices", status=status, times=1000)
    intent = paper.intend()
    assert intent.plan["price_per_hour"] == known
    assert len(paper.launch(intent)) == 2


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_bill_that_is_refused_ends_no_machines_that_are_ready(paper: Paper, status: int) -> None:
    paper.cloud.fault("get_instance_pricing_history", status=status, times=1000)
    found = paper.launch(paper.intend())
    assert [each.price_per_hour for each in found] == [24.0] * 2
    assert len(paper.alive()) == 2


def test_a_bid_below_the_price_waits_and_says_for_what(paper: Paper) -> None:
    intent = paper.intend(max_price_per_hour=17.0)
    paper.cloud.price(H100, 20.0)
    text = paper.told(intent, "auction")
    assert "price now $20.00, your limit $16.50 per instance and hour" in text
    (placeholder,) = paper.alive()
    assert placeholder.state == "starting"
    paper.cloud.price(H100, 10.0)
    assert len(paper.launch(intent)) == 2


def test_a_bid_that_waits_can_be_ended(paper: Paper) -> None:
    intent = paper.intend(max_price_per_hour=17.0)
    paper.cloud.price(H100, 20.0)
    paper.told(intent, "auction")
    assert paper.end() == []
    assert paper.live() == []
    with pytest.raises(ProviderError, match="ended before"):
        paper.provider.launch(intent)


def test_it_is_all_or_none(paper: Paper) -> None:
    paper.cloud.capacity(H100, 1)
    intent = paper.intend(2)
    paper.told(intent, "auction")
    assert paper.cloud.instances() == []


def test_a_paused_bid_is_named_and_waited_for(paper: Paper) -> None:
    paper.cloud.capacity(H100, 0)
    intent = paper.intend()
    paper.told(intent, "auction")
    paper.change(paused=True)
    assert "is paused" in paper.told(intent, "paused")
    paper.change(paused=False)
    paper.cloud.capacity(H100, 8)
    assert len(paper.launch(intent)) == 2


def test_a_bid_that_somebody_ended_is_no_more(paper: Paper) -> None:
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.told(intent, "still starting")
    (bid,) = paper.live()
    paper.request("DELETE", f"/v2/spot/bids/{bid['fid']}")
    with pytest.raises(ProviderError, match="ended by somebody else"):
        paper.launch(intent)


# Machines that do not come


def test_nodes_that_boot_are_named(paper: Paper) -> None:
    paper.doors.silent = {"silent": "nothing answers at port 22"}
    intent = paper.intend(3)
    text = paper.told(intent, "still starting")
    assert text.startswith("3 of 3 nodes are still starting (inst_")
    paper.doors.silent = {}
    assert len(paper.launch(intent)) == 3


@pytest.mark.parametrize("what", ["a disk", "a key"])
def test_a_machine_that_answers_and_then_runs_nothing_ends_all(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever is done on machines that are there counts as booting, and is paid for."""
    # Longer than a pause of this machine may be before it has tried.
    paper.configure(boot_timeout=5.0, node_key=what == "a key")
    block = {"/data": {"name": "scratch", "size_gb": 1, "interface": "block"}}

    def connect(data: object) -> object:
        raise NodeUnreachable("it runs nothing within 60 s")

    monkeypatch.setattr(paper.doors, "connect", connect)
    with pytest.raises(ProviderError, match=r"not all machines were ready.*it runs nothing"):
        paper.launch(paper.intend(1, volumes=block if what == "a disk" else {}))
    paper.end()
    assert paper.live() == []


@pytest.mark.parametrize("how", ["never", "silent"])
def test_a_machine_that_never_comes_ends_all(paper: Paper, how: str) -> None:
    paper.configure(boot_timeout=0.4)
    if how == "never":
        paper.cloud.odd_boots("never")
    else:
        paper.doors.silent = {"silent": "nothing answers"}
    with pytest.raises(ProviderError, match=r"not all machines were ready 0\.4 s after.*inst_"):
        paper.launch(paper.intend())
    paper.end()
    assert paper.live() == []


@pytest.mark.parametrize("comes", [True, False])
def test_machines_that_came_while_the_lid_was_closed_are_looked_at_before_they_are_given_up(
    paper: Paper, comes: bool
) -> None:
    """The network of a laptop that has just woken up is not there yet, and what was known before is old."""
    intent = paper.intend()
    with closed_lid() as lid:
        paper.doors.silent = {"silent": "nothing answers"}
        paper.told(intent, "still starting")
        lid.slept = 2100.0
        assert "still starting" in paper.waiting(intent)
        if comes:
            paper.doors.silent = {}
            assert len(paper.launch(intent)) == 2
            return
        lid.awake = 20.0
        assert "still starting" in paper.waiting(intent)
        lid.awake = 40.0
        with pytest.raises(ProviderError, match="not all machines were ready 30 min after"):
            paper.launch(intent)


def test_a_machine_that_dies_while_it_boots_is_named_and_ends_all(paper: Paper) -> None:
    paper.cloud.odd_boots("error")
    with pytest.raises(ProviderError, match=r"died while starting: flow-.*STATUS_ERROR"):
        paper.launch(paper.intend())
    assert {each.state for each in paper.end()} == {"ended"}
    assert paper.live() == []


def test_a_machine_that_cannot_be_used_ends_all(paper: Paper) -> None:
    paper.doors.silent = {"wrong": "no Python 3.11 or newer"}
    with pytest.raises(ProviderError, match="no Python"):
        paper.launch(paper.intend())
    assert {each.state for each in paper.end()} == {"ended"}


def test_machines_taken_away_before_they_were_ready_are_bid_for_again(paper: Paper) -> None:
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.told(intent, "still starting")
    (first,) = paper.live()
    paper.cloud.preempt([first["fid"]], 0.05, again_after=30)
    paper.told(intent, "bid anew")
    paper.doors.silent = {}
    found = paper.launch(intent)
    (second,) = paper.live()
    assert second["fid"] != first["fid"]
    assert {each.data["bid"] for each in found} == {second["fid"]}


def test_why_a_launch_has_failed_is_told_also_where_its_end_was_not_answered(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.01)
    paper.configure(boot_timeout=0.3)
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.cloud.fault("cancel_bid", status=503, when="before", times=4)
    paper.told(intent, "Mithril has trouble")
    for _ in range(2):
        with pytest.raises(ProviderError, match="not all machines were ready"):
            paper.launch(intent)
    paper.end()
    assert paper.live() == []


@pytest.mark.parametrize("listed", [False, True])
def test_a_bid_whose_end_was_not_answered_is_not_one_that_somebody_else_ended(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """Its machines were taken away while they booted, and the network went down as it was ended."""
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.01)
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.told(intent, "still starting")
    (first,) = paper.live()
    paper.cloud.fault("cancel_bid", status=503, when="after", times=4)
    paper.cloud.preempt([first["fid"]], 0.05, again_after=30)
    paper.told(intent, "Mithril has trouble")
    assert paper.live() == []
    if listed:
        paper.alive()
    paper.doors.silent = {}
    # Another process has not seen the bid before.
    found = paper.launch(intent, paper.make())
    (second,) = paper.live()
    assert {each.data["bid"] for each in found} == {second["fid"]} != {first["fid"]}


def test_a_launch_of_days_ago_that_has_lost_its_bid_just_now_goes_on(paper: Paper) -> None:
    """Whoever lists the machines, between two of its bids, sees nothing of it."""
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    paper.told(intent, "still starting")
    (file,) = (paper.home / "mithril" / "launches").glob(f"{intent.token}*.json")
    begun = json.loads(file.read_bytes())
    file.write_text(json.dumps({**begun, "at": begun["at"] - 2 * 86400}))
    (first,) = paper.live()
    paper.cloud.preempt([first["fid"]], 0.05, again_after=30)
    paper.told(intent, "bid anew")
    eventually(lambda: paper.live() == [] or None, "nothing of it is there")
    assert paper.alive() == []
    paper.doors.silent = {}
    assert len(paper.launch(intent)) == 2


def test_bids_that_are_over_are_asked_for_once(paper: Paper) -> None:
    """A launch that loses its machines again and again has had hundreds of them after some days."""
    paper.doors.silent = {"silent": "nothing answers"}
    intent = paper.intend()
    lost: set[str] = set()
    for _ in range(3):
        paper.told(intent, "still starting")
        (bid,) = (each for each in paper.live() if each["fid"] not in lost)
        lost.add(bid["fid"])
        paper.cloud.preempt([bid["fid"]], 0.05, again_after=30)
        paper.told(intent, "bid anew")
    paper.doors.silent = {}
    assert len(paper.launch(intent)) == 2
    eventually(lambda: len(paper.live()) == 1 or None, "the others are over")

    def asked() -> int:
        before = paper.calls("get_bid")
        assert len(paper.alive()) == 2
        return paper.calls("get_bid") - before

    eventually(lambda: asked() == 1 or None, "only the bid that is left is asked for")


def test_settings_that_have_become_wrong_are_a_refusal(paper: Paper) -> None:
    intent = paper.intend()
    paper.configure(regoin="x")
    with pytest.raises(ProviderError, match="did you mean 'region'"):
        paper.provider.launch(intent)


def test_hours_of_faults_end_no_launch(paper: Paper) -> None:
    intent = paper.intend()
    paper.cloud.fault("create_bid", status=502, times=2)
    paper.waiting(intent)
    paper.provider._place.ledger.note(intent.token, unknown=5000)
    paper.waiting(intent)
    assert len(paper.launch(intent)) == 2
    paper.end()
