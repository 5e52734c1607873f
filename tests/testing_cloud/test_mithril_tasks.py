"""Whole tasks on the fake Mithril's machines, while the cloud misbehaves: from submission to the last trace."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from flowlite.api.task import Task
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually
from tests.testing_cloud.mithril_gangs import PATIENCE, Submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _nothing_left(box: CloudInABox) -> bool:
    there = [each for each in box.mithril.instances() if each["there"]]
    keys = [each["name"] for each in box.mithril.api_keys() if each["good"]]
    return not box.mithril.live_bids() and not there and keys == ["account"]


@pytest.mark.parametrize("how", ["outbid", "relocated"])
def test_a_gang_that_loses_machines_is_told_and_goes_on_on_new_ones(
    box: CloudInABox, submit: Submit, how: str
) -> None:
    task = submit(
        "echo attempt $FLOW_ATTEMPT; [ $FLOW_ATTEMPT = 1 ] || exit 0; "
        "trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done",
        max_price_per_hour=2.0,
        grace_seconds=5.0,
    )
    eventually(
        lambda: [line.text for line in task.logs()].count("attempt 1") == 2, timeout=PATIENCE
    )
    (first,) = box.mithril.live_bids()
    if how == "outbid":
        box.mithril.preempt([first["id"]], 20, again_after=600)
    else:
        # The machine that takes its place is not wanted: it would be paid for, and nothing run on it.
        box.mithril.relocate(first["instances"][0], 20)
    assert task.wait(PATIENCE).status == "completed", task.reason
    assert task.attempt == 2
    said = [line.text for line in task.logs()]
    assert (said.count("told"), said.count("attempt 2")) == (2, 2)
    assert len(box.mithril.bids()) == 2
    eventually(lambda: _nothing_left(box))


@pytest.mark.parametrize("then", ["resumed", "cancelled"])
def test_a_gang_whose_bid_somebody_pauses_waits(
    box: CloudInABox, submit: Submit, then: str
) -> None:
    task, bid = run_until_lost(box, submit)
    pause(box, bid, True)
    eventually(lambda: "is paused at Mithril" in task.reason, timeout=PATIENCE)
    assert [each["id"] for each in box.mithril.bids()] == [bid]
    if then == "resumed":
        pause(box, bid, False)
        assert task.wait(PATIENCE).status == "completed", task.reason
        assert (task.attempt, task.record.retries_used) == (2, 0)
        assert len(box.mithril.bids()) == 2
    else:
        task.cancel()
        assert task.wait(PATIENCE).status == "cancelled", task.reason
        assert len(box.mithril.bids()) == 1
    eventually(lambda: _nothing_left(box))


def run_until_lost(box: CloudInABox, submit: Submit) -> tuple[Task[Any], str]:
    """A gang whose first attempt runs until its machines are lost, and the id of its bid."""
    task = submit(
        "echo attempt $FLOW_ATTEMPT; [ $FLOW_ATTEMPT = 1 ] || exit 0; while :; do sleep 0.1; done"
    )
    eventually(
        lambda: [line.text for line in task.logs()].count("attempt 1") == 2, timeout=PATIENCE
    )
    (bid,) = box.mithril.live_bids()
    return task, str(bid["id"])


def pause(box: CloudInABox, bid: str, paused: bool) -> None:
    """What somebody does in the console, again and again while the cloud gives no answer or an error."""
    there = box.mithril.environment()
    unanswered = False

    def asked() -> bool:
        nonlocal unanswered
        try:
            answer = httpx.patch(
                f"{there['MITHRIL_API_URL']}/v2/spot/bids/{bid}",
                json={"paused": paused},
                headers={"Authorization": f"Bearer {there['MITHRIL_API_KEY']}"},
            )
        except httpx.TransportError:
            unanswered = True
            return False
        busy = answer.status_code == 429 or answer.status_code >= 500
        unanswered |= busy
        if unanswered and answer.status_code == 400 and "Bid is terminated" in answer.text:
            # It was carried out without an answer, and the task has gone on from there meanwhile.
            return True
        assert busy or answer.status_code == 200, answer.text
        return answer.status_code == 200

    eventually(asked)


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"hang": 0.1}, {"kill": True}], ids=["5xx", "time-out", "killed"]
)
def test_a_bid_of_which_the_answer_got_lost_is_found_again_though_listings_lag(
    box: CloudInABox, submit: Submit, fault: dict[str, Any]
) -> None:
    # The worst there may be: neither names nor keys keep the cloud from taking the same bid twice.
    box.mithril.rules(unique_names=False, lag=1.0)
    if fault.pop("kill", False):
        box.mithril.kill_client("create_bid", "after")
    else:
        box.mithril.fault("create_bid", when="after", **fault)
    task = submit("echo here")
    assert task.wait(PATIENCE).status == "completed", task.reason
    assert sorted(line.text for line in task.logs()) == ["here", "here"]
    assert len(box.mithril.bids()) == 1
    eventually(lambda: _nothing_left(box))


def test_a_machine_that_comes_to_nothing_ends_the_bid(box: CloudInABox, submit: Submit) -> None:
    box.mithril.odd_boots("error")
    task = submit("echo here")
    assert task.wait(PATIENCE).status == "failed"
    assert "STATUS_ERROR" in task.reason or "inst_" in task.reason
    eventually(lambda: _nothing_left(box))


# A bid that is placed twice and wins twice would be another one that the gang begins with.
@pytest.mark.no_random_faults
@pytest.mark.parametrize("lost", [1, 2], ids=["a further bid", "the bid for the fewest"])
def test_an_elastic_gang_goes_on_without_the_machines_of_one_bid(
    box: CloudInABox, submit: Submit, lost: int
) -> None:
    size = 2 + lost
    task = submit(
        "echo attempt $FLOW_ATTEMPT rank $RANK of $WORLD_SIZE; "
        "[ $FLOW_ATTEMPT = 1 ] || exit 0; while :; do sleep 0.1; done",
        num_instances=(2, size),
        settle_seconds=60.0,
        heal_seconds=1.0,
    )
    begun = lambda attempt, ranks: {  # noqa: E731
        f"attempt {attempt} rank {rank} of {ranks}" for rank in range(ranks)
    }
    eventually(lambda: {line.text for line in task.logs()} == begun(1, size), timeout=PATIENCE)
    bids = box.mithril.live_bids()
    taken = next(bid for bid in bids if bid["instance_quantity"] == lost)
    box.mithril.preempt([taken["id"]], 0.0, again_after=3600)
    box.mithril.capacity(task.record.plan["instance_type"], 2)
    assert task.wait(PATIENCE).status == "completed", task.reason
    assert task.attempt == 2
    assert {line.text for line in task.logs()} == begun(1, size) | begun(2, 2)
    assert task.record.retries_used == 0
    eventually(lambda: _nothing_left(box))


def test_a_gang_whose_bid_is_paused_only_for_a_moment_goes_on(
    box: CloudInABox, submit: Submit
) -> None:
    task, bid = run_until_lost(box, submit)
    pause(box, bid, True)
    pause(box, bid, False)
    assert task.wait(PATIENCE).status == "completed", task.reason
    assert (task.attempt, task.record.retries_used) == (2, 0)
    eventually(lambda: _nothing_left(box))
