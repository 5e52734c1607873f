"""A bid that one task hands to the next: whose machines they are, what they cost, and how it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from flowlite.errors import NodeUnreachable
from flowlite.provider import Instance, LaunchIntent
from provider_adapters.rented import machine_hand_over
from tests.helpers import put_agent
from tests.providers.mithril_on_paper import H100, Paper, eventually

FIRST, SECOND = "tfirst00000", "tsecond0000"
KEPT = 600.0


@pytest.fixture(autouse=True)
def told(paper: Paper) -> Iterator[list[str]]:
    """What the machines are told between two tasks: they do it."""
    put_agent(paper.home)
    said: list[str] = []

    def keep(*_: object) -> None:
        said.append("keep")

    def take(*_: object) -> None:
        said.append("take")

    with (
        mock.patch.object(machine_hand_over, "keep", keep),
        mock.patch.object(machine_hand_over, "take", take),
    ):
        yield said


def intend(paper: Paper, task: str, **options: Any) -> LaunchIntent:
    intent = paper.intend(task=task, **options)
    return dataclasses.replace(intent, plan={**intent.plan, "warm_seconds": KEPT})


def kept(paper: Paper, **options: Any) -> list[Instance]:
    """The machines of a first task, which keeps them."""
    found = paper.launch(intend(paper, FIRST, **options))
    assert [each.state for each in paper.provider.keep(found, KEPT)] == ["warm", "warm"]
    return found


def names(found: list[Instance]) -> list[str]:
    return sorted(each.id for each in found)


def test_the_next_task_has_the_bid_and_the_first_has_nothing(paper: Paper) -> None:
    first = kept(paper)
    assert [each.state for each in paper.alive(FIRST)] == ["warm", "warm"]
    intent = intend(paper, SECOND)
    second = paper.launch(intent)
    assert names(second) == names(first)
    assert len(paper.cloud.bids()) == 1
    assert {each.task_id for each in second} == {SECOND}
    assert all(each.data["home"].endswith(f"{SECOND}-{each.id}") for each in second)
    assert all(a.launched_at < b.launched_at for a, b in zip(first, second, strict=True))
    # Another process has nothing but the ledger.
    again = paper.make()
    listed = again.list_instances(SECOND)
    assert names(listed) == names(first)
    assert {(each.state, each.launch, each.hold) for each in listed} == {
        ("running", intent.token, 1)
    }
    assert again.list_instances(FIRST) == []
    assert names(again.launch(intent)) == names(first), "it is the same launch"
    assert again.list_instances(SECOND)[0].hold == 1


def test_the_first_task_cannot_end_what_the_second_has(paper: Paper) -> None:
    first = kept(paper)
    second = paper.launch(intend(paper, SECOND))
    paper.provider.terminate(first)
    assert paper.provider.still_warm(first) == []
    assert len(paper.live()) == 1
    paper.provider.terminate(second)
    eventually(lambda: not paper.alive(SECOND) or None, "all is gone")
    assert paper.live() == []


def test_each_task_is_charged_for_its_own_time(paper: Paper) -> None:
    kept(paper)
    second = paper.launch(intend(paper, SECOND))
    since = {each.id: each.launched_at for each in second}
    over = paper.end(SECOND)
    assert {each.id: each.launched_at for each in over} == since
    assert {each.task_id for each in over} == {SECOND}
    assert all(each.ended_at > each.launched_at for each in over)
    assert paper.make().list_instances(SECOND) == over


@pytest.mark.parametrize(("first", "second"), [(20.0, 30.0), (30.0, 20.0)])
def test_the_bid_gets_the_limit_of_the_task_that_has_it(
    paper: Paper, first: float, second: float
) -> None:
    high = {"gpu": "h100:8", "priority": "high"}
    kept(paper, max_price_per_hour=first, **high)
    paper.launch(intend(paper, SECOND, max_price_per_hour=second, **high))
    (bid,) = paper.live()
    assert bid["limit_price"] == f"${second:.2f}"


def test_a_bid_that_will_lose_its_machines_is_ended_and_another_placed(
    paper: Paper, told: list[str]
) -> None:
    first = kept(paper)
    paper.cloud.preempt([first[0].data["bid"]], 60.0)
    second = paper.launch(intend(paper, SECOND))
    assert not {*names(first)} & {*names(second)}
    assert [bid["fid"] for bid in paper.live()] == [second[0].data["bid"]]
    assert "take" not in told


def test_a_bid_that_a_killed_task_began_to_end_is_ended_by_the_next(paper: Paper) -> None:
    """The task has noted that it ends it, and was killed before it asked Mithril."""
    first = kept(paper)
    assert names(paper.provider._place.kept.to_end(paper.alive(FIRST))) == names(first)
    second = paper.launch(intend(paper, SECOND))
    assert not {*names(first)} & {*names(second)}
    assert [bid["fid"] for bid in paper.live()] == [second[0].data["bid"]]


def test_machines_that_do_not_answer_are_ended_and_others_bid_for(paper: Paper) -> None:
    first = kept(paper)

    def silent(*_: object) -> None:
        raise NodeUnreachable("nothing answers")

    with mock.patch.object(machine_hand_over, "take", silent):
        second = paper.launch(intend(paper, SECOND))
    assert not {*names(first)} & {*names(second)}
    assert [bid["fid"] for bid in paper.live()] == [second[0].data["bid"]]


@pytest.mark.parametrize(
    "options", [{"gpu": "a100:8"}, {"count": 1}, {"python": "3.12"}, {"max_run_time_hours": 40.0}]
)
def test_other_tasks_place_their_own_bids(paper: Paper, options: dict[str, Any]) -> None:
    first = kept(paper, max_run_time_hours=1.0)
    second = paper.launch(intend(paper, SECOND, **{"max_run_time_hours": 1.0, **options}))
    assert not {*names(first)} & {*names(second)}
    assert [each.state for each in paper.alive(FIRST)] == ["warm", "warm"]


def test_nothing_is_kept_without_a_key_that_ends_the_bid(paper: Paper) -> None:
    paper.configure(node_key=False)
    found = paper.launch(intend(paper, FIRST))
    assert paper.provider.keep(found, KEPT) == []
    notes = intend(paper, SECOND, keep_warm=KEPT).plan["notes"]
    assert any("keep_warm has no effect: no machine could end the bid" in note for note in notes)


def test_the_key_of_a_bid_that_is_kept_or_was_handed_over_stays(paper: Paper) -> None:
    kept(paper)
    good = lambda: sum(key["good"] for key in paper.cloud.api_keys())  # noqa: E731
    before = good()
    paper.provider.sweep([])
    assert good() == before
    paper.launch(intend(paper, SECOND))
    paper.provider.sweep([SECOND])
    assert good() == before
    paper.provider.sweep([])
    assert good() == before - 1


def test_the_price_of_a_bid_that_is_handed_on_may_change(paper: Paper) -> None:
    kept(paper, max_price_per_hour=40.0)
    paper.cloud.price(H100, 19.0)
    paper.cloud.auction()
    second = paper.launch(intend(paper, SECOND, max_price_per_hour=40.0))
    assert len(paper.cloud.bids()) == 1
    assert {each.data["prices"][-1][1] for each in second} == {19.0}
