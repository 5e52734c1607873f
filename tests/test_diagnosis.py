"""Whom everyone waits for, told from stacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.diagnosis.hang import Rank, diagnose, spans

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WRAPPER = ("/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper")
USER = ("train.py", 11, "train")
ALL_REDUCE = ((C10D, 3252, "all_reduce"), WRAPPER, USER)
BARRIER = ((C10D, 5000, "barrier"), WRAPPER, ("train.py", 20, "train"))
SLEEPS = (("train.py", 9, "train"),)


def ranks(*stacks: tuple[tuple[str, int, str], ...]) -> list[Rank]:
    return [Rank(n, n // 4, 100 + n, "S", frames, "py-spy") for n, frames in enumerate(stacks)]


def test_the_rank_that_everyone_waits_for_is_named() -> None:
    found = diagnose(ranks(*[ALL_REDUCE] * 5, SLEEPS, *[ALL_REDUCE] * 2), 8)

    assert found.waited_for == (5,)
    assert found.verdict == (
        "everyone else waits in all_reduce for rank 5: rank 5 (node 1) is at train.py:9 in train"
    )
    assert [group.numbers for group in found.groups] == [[5], [0, 1, 2, 3, 4, 6, 7]]


def test_a_wait_deep_inside_a_collective_is_called_by_its_outer_name() -> None:
    inner = ((C10D, 100, "_store_based_barrier"), (C10D, 200, "barrier"), USER)

    assert Rank(0, 0, 1, frames=inner).waits_in == "barrier"


def test_different_collectives() -> None:
    found = diagnose(ranks(ALL_REDUCE, ALL_REDUCE, BARRIER, ALL_REDUCE), 4)

    assert found.waited_for == (2,)
    assert "ranks 0-1, 3 wait in all_reduce" in found.verdict
    assert "rank 2 waits in barrier" in found.verdict


def test_ranks_that_are_not_there_are_waited_for() -> None:
    found = diagnose(ranks(ALL_REDUCE, ALL_REDUCE), 3)

    assert found.missing == found.waited_for == (2,)
    assert found.verdict == "ranks 0-1 wait in all_reduce; rank 2 has ended or never started"


def test_all_in_one_collective_points_at_the_network() -> None:
    assert "links between the nodes" in diagnose(ranks(BARRIER, BARRIER), 2).verdict


def test_nobody_waits() -> None:
    found = diagnose(ranks(SLEEPS, SLEEPS), 2)

    assert (found.verdict, found.waited_for) == ("", ())
    assert len(found.groups) == 1


def test_a_rank_without_a_stack_is_not_accused() -> None:
    blind = Rank(1, 0, 101, "S", (), "", "py-spy is not installed")
    found = diagnose([*ranks(ALL_REDUCE), blind], 2)

    assert found.waited_for == ()


def test_the_users_part_of_a_stack() -> None:
    home = f"/n/source-{'a' * 64}/pkg/hang.py"
    frames = [
        {"file": home, "line": 9, "function": "train"},
        {"file": "flowlite_node/worker/load_call.py", "line": 35, "function": "Call.run"},
        {"file": "flowlite_node/worker/worker.py", "line": 152, "function": "_run_function"},
    ]
    told = {"rank": 3, "pid": 7, "state": "S", "frames": frames, "how": "py-spy", "why": ""}

    assert Rank.of(1, told).frames == (("pkg/hang.py", 9, "train"),)


def test_the_same_place_on_two_nodes_is_one_group() -> None:
    def told(rank: int) -> dict[str, object]:
        file = f"/home/{rank}/source-{'b' * 64}/hang.py"
        frames = [{"file": file, "line": 9, "function": "train"}]
        return {"rank": rank, "pid": 7, "state": "S", "frames": frames, "how": "", "why": ""}

    assert len(diagnose([Rank.of(0, told(0)), Rank.of(1, told(1))], 2).groups) == 1


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"), ([2, 1], "1-2")],
)
def test_spans(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text


@given(st.sets(st.integers(0, 300)))
def test_spans_say_every_number(numbers: set[int]) -> None:
    said: set[int] = set()
    for part in filter(None, spans(numbers).split(", ")):
        first, _, last = part.partition("-")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == numbers
