"""Ranks are made in one place, the same way every time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.config import ranks

INSTANCES = st.lists(st.text(min_size=1), min_size=1, max_size=20, unique=True)


@given(INSTANCES, st.randoms(use_true_random=False))
def test_ranks_do_not_depend_on_the_order_of_arrival(
    ids: list[str], shuffle: random.Random
) -> None:
    expected = ranks.assign_ranks(ids)
    shuffle.shuffle(ids)
    assert ranks.assign_ranks(ids) == expected == sorted(ids)


@given(INSTANCES, st.data())
def test_a_replacement_takes_the_vacated_rank_and_nobody_else_moves(
    ids: list[str], data: st.DataObject
) -> None:
    before = ranks.assign_ranks(ids)
    old = data.draw(st.sampled_from(before))
    new = data.draw(st.text(min_size=1).filter(lambda name: name not in before))
    after = ranks.succeed(before, [old], [new])
    assert after.index(new) == before.index(old)
    assert [a for a, b in zip(after, before, strict=True) if a != b] == [new]


@pytest.mark.parametrize("ids", [[], ["a", "a"], [""]])
def test_a_roster_that_cannot_be_is_refused(ids: list[str]) -> None:
    with pytest.raises(ranks.RankError):
        ranks.assign_ranks(ids)


@given(INSTANCES, st.lists(st.text(min_size=1), max_size=20, unique=True), st.data())
def test_a_gang_that_shrinks_or_grows_keeps_the_order_of_those_that_stay(
    ids: list[str], others: list[str], data: st.DataObject
) -> None:
    before = ranks.assign_ranks(ids)
    gone = set(data.draw(st.lists(st.sampled_from(before), unique=True)))
    new = [name for name in others if name not in before]
    stay = [name for name in before if name not in gone]
    if not stay and not new:
        return
    after = ranks.succeed(before, gone, new)
    assert sorted(after) == sorted([*stay, *new])
    assert [name for name in after if name in stay] == stay
    if len(new) >= len(gone):
        # Every lost one is replaced, so that nobody moves.
        assert [after.index(name) for name in stay] == [before.index(name) for name in stay]
    data.draw(st.randoms(use_true_random=False)).shuffle(new)
    assert ranks.succeed(before, gone, new) == after


def test_a_replacement_must_fit() -> None:
    with pytest.raises(ranks.RankError, match="twice"):
        ranks.succeed(["a", "b"], ["a"], ["b"])


@given(st.integers(1, 64), st.integers(0, 100), st.integers(0, 63))
def test_worker_ranks_are_node_major_and_can_be_taken_apart(
    per_node: int, node: int, local: int
) -> None:
    local %= per_node
    rank = ranks.global_rank(node, per_node, local)
    assert rank == node * per_node + local
    assert ranks.node_of(rank, per_node) == node
    assert rank - ranks.global_rank(node, per_node, 0) == local


def test_the_digest_tells_rosters_apart() -> None:
    digests = {ranks.digest(each) for each in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", "c"])}
    assert len(digests) == 4
