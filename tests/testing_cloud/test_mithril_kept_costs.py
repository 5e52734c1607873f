"""What tasks are charged for bids that they have kept, beside the bill that the fake of Mithril writes by its books."""

from __future__ import annotations

from typing import Any

import pytest

from flowlite.api.client import Flow
from flowlite.api.task import Task
from flowlite.state import clock
from flowlite.supervise.money.cost import cost_of, is_upper_bound
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually
from tests.testing_cloud.mithril_gangs import PATIENCE, Submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_HIGH: dict[str, Any] = {"gpu": "h100:8", "max_price_per_hour": 24.0, "priority": "high"}
_CENT = 0.01


def kept(submit: Submit, seconds: float) -> Task[Any]:
    """A task that has ended, and keeps its machines for so long."""
    task = submit("true", keep_warm=seconds, **_HIGH)
    assert task.wait(PATIENCE).status == "completed", task.reason
    assert {row.state for row in Flow().instances_of(task)} == {"warm"}
    return task


def charged(*tasks: Task[Any]) -> float:
    """What tasks have cost, as far as flowlite knows it without asking."""
    return sum(cost_of(Flow().instances_of(task), clock.now()) for task in tasks)


def bill(box: CloudInABox) -> float:
    return sum(float(each["dollars"]) for each in box.mithril.bill())


def no_bid_is_left(box: CloudInABox) -> None:
    eventually(lambda: not box.mithril.live_bids(), timeout=PATIENCE)
    eventually(lambda: not any(each["there"] for each in box.mithril.instances()), timeout=PATIENCE)


def check(box: CloudInABox, *tasks: Task[Any]) -> None:
    """Checks that all tasks are charged what the bids have cost, once none is left."""

    def is_exact() -> bool:
        assert Flow().look_up_cost() == []
        return not any(is_upper_bound(Flow().instances_of(task)) for task in tasks)

    eventually(is_exact, timeout=PATIENCE)
    assert bill(box) > _CENT
    assert charged(*tasks) == pytest.approx(bill(box), abs=_CENT / 2)


def test_a_price_that_rises_while_the_bid_is_kept_is_charged(
    box: CloudInABox, submit: Submit
) -> None:
    task = kept(submit, 15.0)
    assert is_upper_bound(Flow().instances_of(task))
    box.mithril.price("*", 23.0)
    no_bid_is_left(box)
    assert is_upper_bound(Flow().instances_of(task))
    check(box, task)


def test_what_a_kept_bid_has_cost_so_far_is_asked(box: CloudInABox, submit: Submit) -> None:
    task = kept(submit, 60.0)
    box.mithril.price("*", 23.0)
    before = bill(box)
    eventually(lambda: bill(box) > before + _CENT, timeout=PATIENCE)
    assert Flow().look_up_cost([task.id]) == []
    assert charged(task) == pytest.approx(bill(box), abs=_CENT)
    # It may rise further before it is asked again.
    assert is_upper_bound(Flow().instances_of(task))
    assert {row.state for row in Flow().warm_nodes()} == {"warm"}


def test_each_task_is_charged_for_its_time_of_a_bid_whose_price_rises(
    box: CloudInABox, submit: Submit
) -> None:
    first = kept(submit, 60.0)
    box.mithril.price("*", 23.0)
    before = bill(box)
    eventually(lambda: bill(box) > before + _CENT, timeout=PATIENCE)
    second = submit("true", keep_warm=10.0, **_HIGH)
    assert second.wait(PATIENCE).status == "completed", second.reason
    assert len(box.mithril.bids()) == 1
    no_bid_is_left(box)
    assert charged(first) > before + _CENT / 2
    check(box, first, second)


def test_a_kept_bid_that_is_preempted_costs_until_its_end(box: CloudInABox, submit: Submit) -> None:
    task = kept(submit, 60.0)
    box.mithril.preempt([each["id"] for each in box.mithril.live_bids()], 20.0, again_after=3600)
    no_bid_is_left(box)
    check(box, task)


def test_a_kept_bid_that_the_next_task_replaces_costs_until_its_end(
    box: CloudInABox, submit: Submit
) -> None:
    first = kept(submit, 60.0)
    (bid,) = box.mithril.live_bids()
    box.mithril.die(bid["instances"][0])
    eventually(lambda: sum(each["there"] for each in box.mithril.instances()) == 1)
    second = submit("true", keep_warm=10.0, **_HIGH)
    assert second.wait(PATIENCE).status == "completed", second.reason
    assert len(box.mithril.bids()) == 2
    no_bid_is_left(box)
    check(box, first, second)
