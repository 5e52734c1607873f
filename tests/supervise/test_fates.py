"""What a provider says of the nodes of a gang that broke, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from flowlite.node.protocol import messages
from flowlite.provider import Instance
from flowlite.supervise.attempt import provider_verdict
from flowlite.supervise.attempt.outcome import End
from flowlite.supervise.attempt.provider_verdict import as_told

NAMES = {f"7.00.0000{rank}": f"node {rank} (7.00.0000{rank})" for rank in range(2)}
AGAIN = "Slurm has queued the job again"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions, without the seconds."""
    monkeypatch.setattr(provider_verdict, "_EVERY", 0.001)


def told(end: End, *answers: Sequence[Instance], waits: bool = True) -> End:
    """The end, with these answers one after the other; the last one stays."""
    left = list(answers)

    async def ask() -> Sequence[Instance]:
        return left.pop(0) if len(left) > 1 else left[0]

    return asyncio.run(as_told(end, ask, waits, NAMES))


def node(state: str, why: str = "", *, rank: int = 0, **about: bool) -> Instance:
    return Instance(id=f"7.00.0000{rank}", task_id="t", state=state, why=why, **about)


def worker(rank: int, code: int, signal: int | None = None) -> dict[int, dict[str, Any]]:
    kind = "signal" if signal else "exit"
    return {
        rank: {
            "rank": rank,
            "node": rank,
            "code": code,
            "signal": signal,
            "failure": {"kind": kind},
        }
    }


FAILED = End(
    messages.FAILED, "first failure: node 0, rank 0: killed by SIGTERM", worker(0, -15, 15)
)
BY_A_SHELL = End(messages.FAILED, "first failure: node 0, rank 0: exited with 143", worker(0, 143))
SIGNALLED = End(messages.PREEMPTED, "the agent of node 0 got SIGTERM")
WE_FIRST = End(messages.LOST, f"{NAMES['7.00.00001']} is lost: no sign of life for 8 s")
BY_ITSELF = End(messages.FAILED, "first failure: node 0, rank 0: exited with 3", worker(0, 3))
# What Slurm says once it has noticed that the host of node 1 is down.
DOWN = [
    node("ended", f"{AGAIN}: node02 is down"),
    node("ended", f"its host node02 is down, and {AGAIN}", rank=1, failed=True),
]
RUN_ON = [node("running"), node("running", rank=1)]
BEING_ENDED = [node("ending"), node("ending", rank=1)]


@pytest.mark.parametrize(
    "end", [FAILED, BY_A_SHELL, SIGNALLED, WE_FIRST], ids=["rank", "shell", "agent", "we first"]
)
@pytest.mark.parametrize(
    "answers",
    [[DOWN], [RUN_ON, DOWN], [BEING_ENDED, BEING_ENDED, DOWN]],
    ids=["now", "old", "soon"],
)
def test_the_node_that_failed_is_named_whoever_notices_first(
    end: End, answers: list[list[Instance]]
) -> None:
    found = told(end, *answers)
    assert found.outcome == messages.LOST
    seen = end.reason.removeprefix("first failure: ")
    assert found.reason == (
        f"node 1 (7.00.00001) failed: its host node02 is down, and {AGAIN}; what was seen here: {seen}"
    )
    assert set(found.replace) == set(NAMES)


def test_where_slurm_notices_nothing_the_node_is_named_by_who_missed_it() -> None:
    assert told(WE_FIRST, RUN_ON) == WE_FIRST


def test_a_rank_that_failed_by_itself_before_its_node_did_comes_first() -> None:
    found = told(BY_ITSELF, DOWN)
    assert found.outcome == messages.FAILED
    assert found.reason.startswith(f"{BY_ITSELF.reason}; node 1 (7.00.00001) failed: ")
    assert set(found.replace) == set(NAMES)


@pytest.mark.parametrize("end", [FAILED, SIGNALLED], ids=["a rank", "an agent"])
def test_a_job_that_was_cancelled_is_no_preemption(end: End) -> None:
    found = told(end, [node("ending")], [node("ended", "the job was cancelled")])
    assert found.outcome == messages.LOST
    assert found.reason.startswith("the job was cancelled; what was seen here: ")
    assert found.replace == ("7.00.00000",)


@pytest.mark.parametrize("end", [FAILED, SIGNALLED], ids=["a rank", "an agent"])
@pytest.mark.parametrize("state", ["ending", "ended"])
def test_what_was_given_to_others_is_nobodys_failure(end: End, state: str) -> None:
    found = told(end, [node(state, AGAIN, preempted=True)])
    assert found.outcome == messages.PREEMPTED
    assert found.reason.startswith(f"{AGAIN}; what was seen here: ")
    assert found.replace == ("7.00.00000",)


def test_nodes_that_run_on_have_nothing_to_do_with_it() -> None:
    assert told(FAILED, [node("running")]) == FAILED


def test_where_nothing_is_taken_away_nobody_waits() -> None:
    assert told(FAILED, [node("ending")], [node("ended", "it has ended")], waits=False) == FAILED
