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
RECV = ((C10D, 2799, "recv"), WRAPPER, ("train.py", 6, "train"))
SEND = ((C10D, 2699, "send"), WRAPPER, ("train.py", 7, "train"))
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


def test_ranks_of_a_node_that_does_not_answer_are_unknown_and_not_ended() -> None:
    found = diagnose(ranks(SLEEPS, ALL_REDUCE), 4, {1: (2, 3)})

    assert (found.missing, found.unknown, found.waited_for) == ((), (2, 3), (0,))
    assert found.verdict == (
        "node 1 does not answer, so ranks 2-3 are unknown; others wait in all_reduce for rank 0: "
        "rank 0 (node 0) is at train.py:9 in train"
    )


def test_links_are_not_suspected_while_a_node_does_not_answer() -> None:
    found = diagnose(ranks(BARRIER, BARRIER), 4, {1: (2, 3)})

    assert not found.nobody_is_late
    assert found.verdict == (
        "node 1 does not answer, so ranks 2-3 are unknown; ranks 0-1 wait in barrier; nothing is known of the other "
        "ranks"
    )


def test_nodes_whose_ranks_are_not_known_are_named() -> None:
    assert diagnose([], 0, {1: (), 2: ()}).verdict == "nodes 1-2 do not answer"


@pytest.mark.parametrize(
    ("stacks", "verdict"),
    [
        ((RECV, RECV), "all ranks wait in recv and none of them sends: a deadlock of the program"),
        ((SEND, SEND), "all ranks wait in send and none of them receives: a deadlock of the"),
        ((RECV, SEND), "rank 0 waits in recv; rank 1 waits in send; compare the peers, the tags"),
        ((RECV, ALL_REDUCE), "ranks wait in different calls: "),
    ],
)
def test_waits_for_one_peer_do_not_point_at_the_network(
    stacks: tuple[tuple[tuple[str, int, str], ...], ...], verdict: str
) -> None:
    found = diagnose(ranks(*stacks), 2)

    assert found.verdict.startswith(verdict)
    assert not found.nobody_is_late


def test_only_a_gang_whose_ranks_all_wait_in_one_collective_has_nobody_late() -> None:
    assert diagnose(ranks(BARRIER, BARRIER), 2).nobody_is_late
    assert not diagnose(ranks(BARRIER, SLEEPS), 2).nobody_is_late
    assert not diagnose(ranks(BARRIER, ALL_REDUCE), 2).nobody_is_late
    assert not diagnose(ranks(BARRIER), 2).nobody_is_late
    assert not diagnose([], 0).nobody_is_late


def test_all_in_one_collective_points_at_the_network() -> None:
    assert "links between the nodes" in diagnose(ranks(BARRIER, BARRIER), 2).verdict


def test_a_suspended_rank_is_named_wherever_it_stands() -> None:
    halted = Rank(1, 0, 4711, "T", ALL_REDUCE, "py-spy")
    found = diagnose([*ranks(ALL_REDUCE), halted], 2)

    assert (found.waited_for, found.nobody_is_late) == ((1,), False)
    assert found.verdict == (
        "rank 1 is suspended, by SIGSTOP or a debugger, and the other ranks wait for it: `kill -CONT 4711` on node 0"
    )
    # A rank that is stopped answers no signal, so without py-spy it has no stack.
    blind = Rank(1, 0, 4711, "t", (), "", "it did not answer signal 39")
    assert diagnose([*ranks(ALL_REDUCE), blind], 2).waited_for == (1,)


def test_nobody_waits() -> None:
    found = diagnose(ranks(SLEEPS, SLEEPS), 2)

    assert (found.verdict, found.waited_for) == ("", ())
    assert len(found.groups) == 1


def test_a_rank_without_a_stack_is_not_accused() -> None:
    blind = Rank(1, 0, 101, "S", (), "", "py-spy is not installed")
    found = diagnose([*ranks(ALL_REDUCE), blind], 2)

    assert found.waited_for == ()
    assert found.verdict == "rank 0 waits in all_reduce; nothing is known of the other ranks"


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
