"""What a provider says of the nodes of a gang that broke, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from flowlite.node import messages
from flowlite.provider import Instance
from flowlite.supervise.ends import End
from flowlite.supervise.fates import as_told


def told(end: End, *answers: Sequence[Instance], waits: bool = True) -> End:
    """The end, with these answers one after the other; the last one stays."""
    left = list(answers)

    async def ask() -> Sequence[Instance]:
        return left.pop(0) if len(left) > 1 else left[0]

    return asyncio.run(as_told(end, ask, waits))


def node(state: str, why: str = "", *, preempted: bool = False) -> Instance:
    return Instance(id="7.00.00000", task_id="t", state=state, why=why, preempted=preempted)


FAILED = End(messages.FAILED, "first failure: rank 1: killed by SIGTERM")
SIGNALLED = End(messages.PREEMPTED, "the agent of node 0 got SIGTERM")


@pytest.mark.parametrize("end", [FAILED, SIGNALLED], ids=["a rank", "an agent"])
def test_a_job_that_was_cancelled_is_no_preemption(end: End) -> None:
    found = told(end, [node("ending")], [node("ended", "the job was cancelled")])
    assert found.outcome in (messages.FAILED, messages.LOST)
    assert found.reason == f"the job was cancelled: {end.reason}"
    assert found.replace == ("7.00.00000",)


@pytest.mark.parametrize("end", [FAILED, SIGNALLED], ids=["a rank", "an agent"])
@pytest.mark.parametrize("state", ["ending", "ended"])
def test_what_was_given_to_others_is_nobodys_failure(end: End, state: str) -> None:
    found = told(end, [node(state, "Slurm has queued the job again", preempted=True)])
    assert found.outcome == messages.PREEMPTED
    assert found.reason.startswith("Slurm has queued the job again: ")
    assert found.replace == ("7.00.00000",)


def test_nodes_that_run_on_have_nothing_to_do_with_it() -> None:
    assert told(FAILED, [node("running")]) == FAILED


def test_where_nothing_is_taken_away_nobody_waits() -> None:
    assert told(FAILED, [node("ending")], [node("ended", "it has ended")], waits=False) == FAILED
