"""Mithril on real hosts: machines are met, reached by what is listed, and end their bid by themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.spec import TaskConfig
from provider_adapters.mithril import MithrilProvider
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox

pytest.importorskip("httpx")
TASK = "tabcdefghij"
PATIENCE = 60.0


@pytest.fixture
def provider(box: CloudInABox, flow_home: Path) -> MithrilProvider:
    return adapter("mithril")


def launch(provider: MithrilProvider, count: int = 2) -> list[Instance]:
    plan = provider.plan(
        TaskConfig(provider="mithril", command=["true"], num_instances=count, max_run_time_hours=1)
    )
    intent = LaunchIntent(f"{TASK}-launch-1", TASK, count, plan.to_json())

    def ask() -> list[Instance] | None:
        try:
            return provider.launch(intent)
        except LaunchPending:
            return None

    return eventually(ask, timeout=PATIENCE, every=0.1, what="the machines are there") or []


def time_is_over(provider: MithrilProvider, instance: Instance) -> None:
    """Has a machine's watchdog see its deadline now."""
    with provider.connect(instance) as connection:
        connection.run(["sh", "-c", "echo 1 >/var/lib/flowlite/deadline"])


def test_machines_are_reached_and_given_back(box: CloudInABox, provider: MithrilProvider) -> None:
    found = launch(provider)
    again = adapter("mithril")
    for instance in again.list_instances(TASK):
        with again.connect(instance) as connection:
            said = connection.run(["hostname", "-I"]).stdout.decode().split()
            assert instance.address in said
    again.terminate(found)

    def gone() -> bool:
        return all(each.state == "ended" for each in again.list_instances(TASK))

    eventually(gone, timeout=PATIENCE, what="the listing shows their end")
    assert box.mithril.live_bids() == []
    listed = again.list_instances(TASK)
    cost = sum(i.price_per_hour * (i.ended_at - i.launched_at) / 3600 for i in listed)
    assert cost == pytest.approx(sum(bid["cost"] for bid in box.mithril.bids()), rel=0.01)


def test_the_key_lies_with_root_alone_on_every_machine(provider: MithrilProvider) -> None:
    look = "stat -c '%a %U' /var/lib/flowlite /var/lib/flowlite/end-bid 2>/dev/null"
    found = set()
    for instance in launch(provider):
        with provider.connect(instance) as connection:
            said = connection.run(["sh", "-c", look]).stdout.decode().splitlines()
            assert said == ["700 root", "600 root"]
            program = connection.run(["cat", "/var/lib/flowlite/end-bid"]).stdout.decode()
            key = re.findall("fkey_[A-Za-z0-9_-]+", program)[0]
            places = "/var/lib /root/.flowlite /run /etc /tmp"
            search = ["sh", "-c", f'grep -rlsI "$(cat)" {places}']
            assert connection.run(search, input=key.encode()).stdout.split() == [
                b"/var/lib/flowlite/end-bid"
            ]
            found.add(key)
    assert len(found) == 1


def test_the_leader_ends_the_bid_with_nobody_else_there(
    box: CloudInABox, provider: MithrilProvider
) -> None:
    """The laptop never comes back, and the API has trouble just then."""
    leader, _ = launch(provider)
    box.mithril.fault("cancel_bid", status=503, when="before", times=2)
    time_is_over(provider, leader)
    eventually(lambda: not box.mithril.live_bids(), timeout=PATIENCE, what="the bid is ended")
    gone = {"STATUS_TERMINATED"}
    eventually(
        lambda: {each["state"] for each in box.mithril.instances()} == gone,
        timeout=PATIENCE,
        what="the machines are gone",
    )
    eventually(
        lambda: {each.state for each in provider.list_instances(TASK)} == {"ended"},
        timeout=PATIENCE,
        what="the listing, which lags behind, shows their end",
    )
    assert [key["name"] for key in box.mithril.api_keys() if key["good"]] == ["account"]


@pytest.mark.parametrize("dead", [0, 1, 2], ids=["leader", "member", "two of three"])
def test_any_machine_that_is_left_ends_the_bid(
    box: CloudInABox, provider: MithrilProvider, dead: int
) -> None:
    """Hardware dies and Mithril does not even notice, so that it goes on charging for all of them."""
    found = launch(provider, 3)
    machines = {each["id"]: each for each in box.mithril.instances()}
    gone = [found[0], found[1]] if dead == 2 else [found[dead]]
    for each in found:
        if each not in gone:
            time_is_over(provider, each)
    for each in gone:
        box.mithril.die(each.id, "STATUS_RUNNING")
        host = box.host(machines[each.id])
        eventually(lambda host=host: not host.alive, timeout=PATIENCE, what="it is dead")
    eventually(lambda: not box.mithril.live_bids(), timeout=PATIENCE, what="the bid is ended")
    assert all(each["until"] for each in box.mithril.bill()), "nothing is charged any more"


# A call that has to be made again comes after the machines are up, and meets them.
@pytest.mark.no_random_faults
def test_machines_that_nobody_ever_met_end_the_bid_with_a_key_from_the_script(
    box: CloudInABox, flow_home: Path
) -> None:
    """The client dies for good once the bid is placed."""
    (flow_home / "config.toml").write_text('[mithril]\nnode_key = "script"\n')
    provider = adapter("mithril")
    # $1.60 per machine and hour at most, so that 45 s of two machines are paid for.
    config = TaskConfig(provider="mithril", command=["true"], num_instances=2, max_cost=0.04)
    plan = provider.plan(config)
    intent = LaunchIntent(f"{TASK}-launch-1", TASK, 2, plan.to_json())
    with pytest.raises(LaunchPending):
        provider.launch(intent)
    assert len(box.mithril.live_bids()) == 1
    # The bid is lost once, too, and wins other machines: they have the key as well.
    running = lambda: [i["id"] for i in box.mithril.instances() if i["state"] == "STATUS_RUNNING"]  # noqa: E731
    first = set(eventually(lambda: len(running()) == 2 and running(), timeout=PATIENCE))
    box.mithril.preempt([box.mithril.live_bids()[0]["id"]], 0.2)
    eventually(
        lambda: len(running()) == 2 and not first & set(running()), timeout=PATIENCE, what="others"
    )
    eventually(lambda: not box.mithril.live_bids(), timeout=PATIENCE, what="the bid is ended")
    assert sum(each["dollars"] for each in box.mithril.bill()) <= 0.04


def test_without_any_key_machines_end_themselves_and_not_the_bid(
    box: CloudInABox, flow_home: Path
) -> None:
    """What docs/providers/mithril.md says of it: the bill goes on until somebody ends the bid."""
    (flow_home / "config.toml").write_text("[mithril]\nnode_key = false\n")
    provider = adapter("mithril")
    leader, other = launch(provider)
    host = next(box.host(each) for each in box.mithril.instances() if each["id"] == other.id)
    time_is_over(provider, other)
    eventually(lambda: not host.alive, timeout=PATIENCE, what="it powers itself off")
    assert len(box.mithril.live_bids()) == 1
    assert leader.id in {each.id for each in provider.list_instances(TASK)}
    provider.terminate([other])
    eventually(lambda: not box.mithril.live_bids(), timeout=PATIENCE, what="the bid is ended")
