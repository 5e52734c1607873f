"""Bids that lose machines, with somebody there or nobody: what is left of them ends, and is not paid for longer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.task import Task
from flowlite.provider import Plan
from flowlite.state.store import Store
from flowlite.supervise.process.end_lost_launch import COLLECT_SECONDS
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually, kill_processes_of_home
from tests.testing_cloud.mithril_gangs import PATIENCE, Submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORKS = (
    "[ $FLOW_ATTEMPT = 1 ] || { echo went on; exit 0; }; i=0; "
    "while :; do i=$((i+1)); echo works $i; sleep 0.2; done"
)


def works(task: Task[Any]) -> bool:
    return {line.rank for line in task.logs() if "works" in line.text} == {0, 1}


def billed_after(box: CloudInABox, bid: str, moment: float) -> float:
    """Machine-seconds of a bid that are charged after a moment, by the box's own books."""
    found = [each for each in box.mithril.bill() if each["bid"] == bid and each["since"]]
    return sum(
        max(0.0, (each["until"] or time.time()) - max(each["since"], moment)) for each in found
    )


def ended(box: CloudInABox, bid: str) -> bool:
    return bid not in {each["id"] for each in box.mithril.live_bids()}


def test_a_bid_that_lost_all_machines_is_ended_before_anything_is_collected(
    box: CloudInABox, submit: Submit
) -> None:
    task = submit(WORKS, max_price_per_hour=2.0)
    eventually(lambda: works(task), timeout=PATIENCE)
    (bid,) = box.mithril.live_bids()
    # Less notice than the nodes need to hear of it, and two other machines at once, which nobody asked for.
    box.mithril.preempt([bid["id"]], 0.2)
    there = lambda: {each["id"] for each in box.mithril.instances() if each["there"]}  # noqa: E731
    eventually(lambda: not there() & set(bid["instances"]), timeout=PATIENCE)
    lost = time.time()
    eventually(lambda: ended(box, bid["id"]), timeout=PATIENCE)
    assert not [event for event in task.events() if event.kind == "lacking"], "it came first"
    assert billed_after(box, bid["id"], lost) < 2 * 25.0


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_what_is_left_of_a_bid_is_collected_and_then_ended(
    box: CloudInABox, submit: Submit, node: int
) -> None:
    script = (
        "[ $FLOW_ATTEMPT = 1 ] || { echo went on; exit 0; }; "
        "trap 'echo last words; exit 0' TERM; while :; do echo works; sleep 0.2; done"
    )
    task = submit(script, max_price_per_hour=2.0, grace_seconds=3.0)
    eventually(lambda: works(task), timeout=PATIENCE)
    (bid,) = box.mithril.live_bids()
    taken = sorted(bid["instances"])[node]
    box.mithril.relocate(taken, 0.2)
    state = lambda: {each["id"]: each["state"] for each in box.mithril.instances()}  # noqa: E731
    eventually(lambda: state()[taken] == "STATUS_REPLACED", timeout=PATIENCE)
    lost = time.time()
    assert task.wait(PATIENCE).status == "completed", task.reason
    assert (task.attempt, len(box.mithril.bids())) == (2, 2)
    said = [(line.rank, line.text) for line in task.logs()]
    assert (1 - node, "last words") in said, "the one that was left is collected"
    # Itself and the one that Mithril put beside it, for as long as it takes to stop and to be collected.
    assert billed_after(box, bid["id"], lost) < 2 * (3.0 + COLLECT_SECONDS + 15.0)


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_with_hardware_and_client_dead_for_good_the_bid_ends_within_its_cap(
    box: CloudInABox, submit: Submit, flow_home: Path, node: int
) -> None:
    # The limit is $1.60 per machine and hour, so that 67 s of two machines are paid for.
    task = submit(WORKS, max_cost=0.06, max_price_per_hour=2.0)
    eventually(lambda: works(task), timeout=PATIENCE)
    store = Store(flow_home / "state.db")
    plan = Plan.from_json(store.get_task(task.id).plan)
    store.close()
    (bid,) = box.mithril.live_bids()
    kill_processes_of_home(flow_home)
    # Mithril does not notice, and goes on charging for both machines.
    box.mithril.die(sorted(bid["instances"])[node], "STATUS_RUNNING")
    eventually(lambda: ended(box, bid["id"]), timeout=PATIENCE, what="the bid is ended")
    assert plan.worst_case_cost == 0.06
    assert sum(each["dollars"] for each in box.mithril.bill()) <= 0.06
    assert not [each for each in box.mithril.bill() if each["since"] and not each["until"]]
