"""Launches at Mithril that are content with fewer machines: a bid for the fewest, and one for each further machine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import Any

import pytest

from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from provider_adapters.mithril import several_bids
from provider_adapters.mithril.markets import Catalogue
from provider_adapters.rented.cloud_polls import CloudPolls
from tests.providers.mithril_on_paper import H100, Paper, eventually


def elastic(paper: Paper, fewest: int = 2, most: int = 4, number: int = 1) -> LaunchIntent:
    intent = paper.intend(most, number, num_instances=(fewest, most))
    return dataclasses.replace(intent, least=fewest)


def launched(paper: Paper, intent: LaunchIntent, machines: int, without: int = 0) -> list[Instance]:
    """Launches; no machine answers before the task has been given so many, and so many bids have won nothing."""
    paper.doors.silent = {"silent": "nothing answers"}

    def given() -> bool | None:
        _launch(paper, intent)
        listed = [each for each in paper.alive() if each.id.startswith("inst_")]
        waiting = [bid for bid in paper.live() if bid["status"] == "Open"]
        return True if (len(listed), len(waiting)) == (machines, without) else None

    eventually(given, f"{machines} machines are given")
    paper.doors.silent = {}
    return paper.launch(intent)


def sizes(paper: Paper) -> list[int]:
    """The sizes of the bids that may still cost something."""
    return sorted(int(bid["instance_quantity"]) for bid in paper.live())


def bids_of(found: list[Instance]) -> Counter[str]:
    return Counter(str(each.data["bid"]) for each in found)


def test_the_fewest_are_one_bid_and_each_further_machine_another(paper: Paper) -> None:
    intent = elastic(paper)
    found = launched(paper, intent, 4)
    assert sizes(paper) == [1, 1, 2]
    assert sorted(bids_of(found).values()) == [1, 1, 2]
    assert [each.id for each in found] == sorted(each.id for each in found)
    assert {each.id for each in paper.alive()} == {each.id for each in found}
    assert {each.launch for each in paper.alive()} == {intent.token}
    # Another process has nothing but the ledger.
    assert [each.id for each in paper.make().launch(intent)] == [each.id for each in found]
    assert paper.calls("create_bid") == 3
    paper.end()
    assert paper.live() == []


def test_further_bids_are_placed_when_the_first_has_its_machines(paper: Paper) -> None:
    paper.cloud.capacity(H100, 1)
    intent = elastic(paper)
    paper.told(intent, "waiting for the auction of 2")
    with pytest.raises(LaunchPending) as pending:
        paper.provider.launch(intent)
    assert pending.value.queued, "another place may be asked"
    assert [each.launch for each in paper.alive()] == [intent.token]
    assert sizes(paper) == [2], "one machine alone would be charged while too few are there"
    paper.cloud.capacity(H100, 8)
    assert len(launched(paper, intent, 4)) == 4
    paper.end()


def test_bids_that_win_nothing_are_withdrawn(paper: Paper) -> None:
    paper.cloud.capacity(H100, 3)
    intent = elastic(paper, 2, 5)
    found = launched(paper, intent, 3, without=2)
    assert len(found) == 3
    assert sizes(paper) == [1, 2]
    # There is more room now, and the same token is the same machines.
    paper.cloud.capacity(H100, 8)
    paper.cloud.auction()
    assert [each.id for each in paper.launch(intent)] == [each.id for each in found]
    assert {each.id for each in paper.alive()} == {each.id for each in found}
    # More machines are another launch.
    more = launched(paper, elastic(paper, 1, 2, number=2), 5)
    assert len(more) == 2
    assert len(paper.alive()) == 5
    paper.end()
    assert paper.live() == []


def test_a_bid_that_cannot_be_withdrawn_at_once_wins_nothing_for_good(paper: Paper) -> None:
    """It wins a machine after all, which ends with it. The launch waits for that."""
    paper.cloud.capacity(H100, 2)
    intent = elastic(paper, 2, 3)
    paper.cloud.fault("cancel_bid", status=503, times=4)
    eventually(lambda: _is_being_withdrawn(paper, intent) or None, "it is withdrawn")
    paper.cloud.capacity(H100, 8)
    paper.cloud.auction()
    found = paper.launch(intent)
    assert len(found) == 2
    assert sizes(paper) == [2]
    assert {each.id for each in paper.alive()} == {each.id for each in found}
    paper.end()


def _is_being_withdrawn(paper: Paper, intent: LaunchIntent) -> bool:
    _launch(paper, intent)
    return paper.calls("cancel_bid") > 0


def _launch(paper: Paper, intent: LaunchIntent) -> None:
    with pytest.raises(LaunchPending):
        paper.provider.launch(intent)


def test_a_bid_that_has_won_since_it_was_looked_at_is_not_withdrawn(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper.cloud.capacity(H100, 2)
    intent = elastic(paper, 2, 3)
    paper.doors.silent = {"silent": "nothing answers"}

    # The addresses of two machines are known, so that they are ready as soon as they answer, and a bid waits.
    paper.told(intent, "2 of 2 nodes are still starting")
    assert sizes(paper) == [1, 2]
    paper.cloud.capacity(H100, 3)
    paper.cloud.auction()
    paper.doors.silent = {}
    with monkeypatch.context() as patch:
        # Bids are looked at ever more rarely: at this moment none is due.
        patch.setattr(CloudPolls, "due", lambda *_: False)
        with contextlib.suppress(LaunchPending):
            paper.provider.launch(intent)
    assert len(paper.launch(intent)) == 3
    assert paper.calls("cancel_bid") == 0
    paper.end()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_a_further_bid_places_it_once(paper: Paper, when: str) -> None:
    intent = elastic(paper, 2, 3)
    paper.cloud.fault("create_bid", status=502, when=when, skip=1)
    found = launched(paper, intent, 3)
    assert len(found) == 3
    assert sizes(paper) == [1, 2]
    paper.end()


def test_a_machine_of_a_further_bid_that_dies_at_its_start_is_done_without(paper: Paper) -> None:
    paper.cloud.boots("runs", "runs", "error")
    found = launched(paper, elastic(paper, 2, 4), 3)
    assert len(found) == 3
    assert sizes(paper) == [1, 2]
    paper.end()


def test_when_the_first_bid_fails_nothing_goes_on(paper: Paper) -> None:
    paper.cloud.boots("error")
    intent = elastic(paper, 2, 4)

    def failed() -> ProviderError | None:
        try:
            paper.provider.launch(intent)
        except LaunchPending:
            return None
        except ProviderError as error:
            return error
        raise AssertionError("it was launched")

    assert "died while starting" in str(eventually(failed, "it failed"))
    eventually(lambda: True if paper.live() == [] else None, "nothing goes on")


def test_when_the_first_bid_loses_its_machines_the_others_end(paper: Paper) -> None:
    paper.doors.silent = {"silent": "nothing answers"}
    intent = elastic(paper, 2, 4)
    paper.told(intent, "nodes are still starting")
    eventually(lambda: True if _launches_others(paper, intent) else None, "the others are placed")
    (first,) = [bid for bid in paper.live() if bid["instance_quantity"] == 2]
    paper.cloud.preempt([first["fid"]], 0.0, again_after=3600.0)
    eventually(lambda: True if _is_alone(paper, intent) else None, "the others have ended")
    paper.doors.silent = {}
    found = paper.launch(intent)
    assert len(found) == 2
    assert sizes(paper) == [2]
    paper.end()


def _launches_others(paper: Paper, intent: LaunchIntent) -> bool:
    _launch(paper, intent)
    return sizes(paper) == [1, 1, 2]


def _is_alone(paper: Paper, intent: LaunchIntent) -> bool:
    _launch(paper, intent)
    return sizes(paper) == [2]


@pytest.mark.parametrize("lost", [1, 2], ids=["a further bid", "the first bid"])
def test_the_machines_of_other_bids_stay_when_one_is_taken_away(paper: Paper, lost: int) -> None:
    found = launched(paper, elastic(paper), 4)
    bid = next(fid for fid, count in bids_of(found).items() if count == lost)
    taken = {each.id for each in found if each.data["bid"] == bid}
    # An auction could give them back to it at once.
    paper.cloud.preempt([bid], 0.0, again_after=60)

    def states() -> dict[str, Any] | None:
        listed = {each.id: each.state for each in paper.provider.list_instances(found[0].task_id)}
        gone = {name for name in taken if listed.get(name) in ("ended", "ending", None)}
        return listed if gone == taken else None

    listed = eventually(states, "the machines are taken away")
    assert {listed[each.id] for each in found if each.id not in taken} == {"running"}
    # The bid would win other machines, which are no part of the gang.
    paper.provider.terminate([e for e in paper.alive() if e.data["bid"] == bid])
    eventually(lambda: True if len(paper.alive()) == 4 - lost else None, "the bid has ended")
    paper.end()
    assert paper.live() == []


def test_if_one_machine_is_enough_all_bids_are_placed_at_once(paper: Paper) -> None:
    paper.cloud.capacity(H100, 0)
    intent = elastic(paper, 1, 3)
    paper.told(intent, "waiting for the auction of 1")
    assert sizes(paper) == [1, 1, 1]
    paper.cloud.capacity(H100, 2)
    found = launched(paper, intent, 2, without=1)
    assert len(found) == 2
    assert sizes(paper) == [1, 1]
    assert [each.id for each in paper.make().launch(intent)] == [each.id for each in found]
    paper.end()
    assert paper.live() == []
    with pytest.raises(ProviderError, match="ended before"):
        paper.provider.launch(intent)


def test_if_one_machine_is_enough_the_first_bid_may_fail(paper: Paper) -> None:
    paper.cloud.boots("error")
    found = launched(paper, elastic(paper, 1, 3), 2)
    assert len(found) == 2
    assert sizes(paper) == [1, 1]
    paper.end()


# Nodes for a gang that runs


def grown(paper: Paper, count: int, number: int = 2) -> LaunchIntent:
    """As a supervisor asks for more nodes while a gang runs."""
    return dataclasses.replace(paper.intend(count, number), least=1, beside=True)


def price(paper: Paper) -> int:
    """What each machine costs after an auction, in cents."""
    paper.cloud.auction()
    kind = paper.live()[0]["instance_type"]
    now = paper.provider._place.account.api.get("/v2/pricing/current", {"instance_type": kind})
    return int(now["spot_price_cents"])


def test_a_gang_that_would_grow_does_not_raise_its_own_price(paper: Paper) -> None:
    """All who win pay what the highest of those has bid that lose."""
    paper.cloud.capacity(H100, 2)
    launched(paper, elastic(paper), 2, without=2)
    before = price(paper)
    with pytest.raises(CapacityUnavailable, match="no machine free"):
        paper.provider.launch(grown(paper, 2))
    assert price(paper) == before
    paper.end()


def test_a_gang_that_grows_bids_for_what_is_free(paper: Paper) -> None:
    paper.cloud.capacity(H100, 3)
    first = launched(paper, elastic(paper, 2, 2), 2)
    (more,) = paper.launch(grown(paper, 2))
    assert sizes(paper) == [1, 2]
    assert {each.id for each in paper.alive()} == {more.id, *(each.id for each in first)}
    paper.end()


@pytest.mark.parametrize("least", [1, 2], ids=["more nodes", "spares"])
def test_a_bid_for_what_is_not_free_any_more_is_withdrawn(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(several_bids, "_LONGEST_BESIDE", 0.2)
    paper.cloud.capacity(H100, 4)
    launched(paper, elastic(paper, 2, 2), 2)
    intent = dataclasses.replace(grown(paper, 2), least=least)
    # Somebody else takes it at this moment.
    before = paper.provider._place.account.catalogue.markets(fresh=0.0)
    monkeypatch.setattr(Catalogue, "markets", lambda *_, **__: before)
    paper.cloud.capacity(H100, 2)

    def refused() -> bool | None:
        try:
            paper.provider.launch(intent)
        except LaunchPending:
            return None
        except CapacityUnavailable:
            return True
        raise AssertionError("it was launched")

    eventually(refused, "it is withdrawn")
    assert sizes(paper) == [2]
    paper.end()
