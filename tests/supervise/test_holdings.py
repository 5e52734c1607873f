"""What follows from what nodes still hold: nothing is forgotten, and nothing is waited for in vain or for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowlite.supervise.attempt.unfetched import (
    PATIENCE,
    PATIENCE_BADLY,
    HoldingPlace,
    MissingFilesDecision,
    MissingOnNode,
    outlook,
)

A, S, G = HoldingPlace.ANSWERS, HoldingPlace.SILENT, HoldingPlace.GONE
FILES = (("r1.result", 40),)


def lost(seen: MissingFilesDecision) -> list[MissingOnNode]:
    """What no node has any more."""
    return [each for each in seen.lacking if each.place is G]


def kept(seen: MissingFilesDecision) -> list[MissingOnNode]:
    """What its node still has, and must not remove."""
    return [each for each in seen.lacking if each.place is not G]


@pytest.mark.parametrize(
    ("place", "ended_well", "waits"),
    [
        (A, True, True),
        (S, True, True),
        (G, True, False),
        (A, False, True),
        (S, False, False),
        (G, False, False),
    ],
)
def test_the_table(place: HoldingPlace, ended_well: bool, waits: bool) -> None:
    seen = outlook(
        [MissingOnNode(0, ()), MissingOnNode(1, FILES, place)],
        ended_well=ended_well,
        waited=1.0,
        given_up=False,
    )
    assert seen.over is not waits
    assert [each.node for each in seen.lacking] == [1]
    assert bool(lost(seen)) is (place is G)


def test_what_a_node_cannot_give_of_a_gang_that_failed_is_not_waited_for_long() -> None:
    holding = MissingOnNode(1, FILES, A, "Permission denied")
    for waited, over in ((PATIENCE_BADLY - 1, False), (PATIENCE_BADLY, True)):
        seen = outlook([holding], ended_well=False, waited=waited, given_up=False)
        assert seen.over is over
    # The disk here may have room again.
    full = MissingOnNode(1, FILES, A, "No space left on device", ours=True)
    seen = outlook([full], ended_well=False, waited=PATIENCE - 1, given_up=False)
    assert not seen.over


holding_of = st.builds(
    MissingOnNode,
    st.integers(0, 5),
    st.sampled_from([(), FILES, (("r1.out", None), ("r1.result", 3))]),
    st.sampled_from(HoldingPlace),
    st.sampled_from(["", "Input/output error"]),
    st.booleans(),
)


@given(
    st.lists(holding_of, max_size=6),
    st.booleans(),
    st.floats(0, 2 * PATIENCE),
    st.booleans(),
)
def test_everything_lacking_is_waited_for_kept_or_lost(
    found: list[MissingOnNode], well: bool, waited: float, given_up: bool
) -> None:
    seen = outlook(found, ended_well=well, waited=waited, given_up=given_up)
    assert set(seen.lacking) == {each for each in found if each.files}
    assert set(lost(seen)) | set(kept(seen)) == set(seen.lacking)
    assert set(seen.waits_for) <= set(kept(seen))
    assert seen.over or (waited < PATIENCE and not given_up)
    if well and waited < PATIENCE and not given_up:
        assert set(seen.waits_for) == set(kept(seen))


class Collecting(RuleBasedStateMachine):
    """Nodes that are cut off, come back, vanish, and give what they hold while they answer; somebody may cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.place = dict.fromkeys(range(3), A)
        self.there = dict.fromkeys(self.place, 2)
        self.here = dict.fromkeys(self.place, 0)
        self.waited = 0.0
        self.given_up = False

    @rule(node=st.integers(0, 2), place=st.sampled_from([A, S]))
    def cut_or_heal(self, node: int, place: HoldingPlace) -> None:
        if self.place[node] is not G:
            self.place[node] = place

    @rule(node=st.integers(0, 2))
    def vanish(self, node: int) -> None:
        self.place[node] = G

    @rule(node=st.integers(0, 2))
    def fetch(self, node: int) -> None:
        if self.place[node] is A:
            self.here[node] = min(self.there[node], self.here[node] + 1)

    @rule(seconds=st.floats(0, 400))
    def wait(self, seconds: float) -> None:
        self.waited += seconds

    @rule()
    def cancel(self) -> None:
        self.given_up = True

    @invariant()
    def nothing_is_removed_that_is_not_here(self) -> None:
        seen = outlook(
            [
                MissingOnNode(node, FILES[: self.there[node] > self.here[node]], place)
                for node, place in self.place.items()
            ],
            ended_well=True,
            waited=self.waited,
            given_up=self.given_up,
        )
        lacking = {each.node for each in seen.lacking}
        removable = set(self.place) - lacking
        assert all(self.here[node] == self.there[node] for node in removable)
        assert {each.node for each in kept(seen)} == {
            node for node in lacking if self.place[node] is not G
        }
        if seen.over and not lacking:
            assert self.here == self.there


TestCollecting = Collecting.TestCase
