"""A supervisor leads gangs on this machine from submission to the end: results, reasons, retries, caps, cancel."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowlite.supervise.process import launch
from tests.gangs import let_go, shell, submit, waiting
from tests.helpers import KILLED, eventually


def test_a_gang_runs_its_logs_come_home_and_nothing_is_left(flow_home: Path) -> None:
    gang = submit(
        flow_home, shell('echo "rank $RANK of $WORLD_SIZE"; echo e >&2'), nodes=2, processes=2
    )
    record = gang.end()
    assert record.outcome == "done"
    assert (record.attempt, len(record.roster)) == (1, 2)
    assert record.started_at is not None
    assert record.finished_at is not None
    for rank in range(4):
        assert gang.output(rank) == f"rank {rank} of 4\n"
        assert gang.output(rank, stream="err") == "e\n"
    assert not (gang.paths.directory / "nodes" / record.roster[0]).exists()
    assert [instance.node_rank for instance in gang.store.instances(gang.id)] == [0, 1]
    assert [intent.state for intent in gang.store.intents(gang.id)] == ["done"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[ $RANK = 3 ] && exit 42; sleep 60", "first failure: node 1, rank 3: exited with 42"),
        (
            "[ $RANK = 1 ] && kill -9 $$; sleep 60",
            f"first failure: node 0, rank 1: {KILLED}",
        ),
        (
            "[ $RANK = 2 ] && kill -SEGV $$; sleep 60",
            r"first failure: node 1, rank 2: killed by SIGSEGV \(a crash in native code\)",
        ),
    ],
)
def test_the_first_failure_stops_the_gang_and_is_the_reason(
    flow_home: Path, text: str, reason: str
) -> None:
    gang = submit(flow_home, shell(text), nodes=2, processes=2)
    record = gang.end("failed")
    assert re.fullmatch(reason, record.reason)
    assert record.outcome == "failed"
    kinds = [kind for kind, _ in gang.events]
    assert kinds.count("first_failure") == 1
    (first,) = [e for e in gang.store.events(gang.id) if e.kind == "first_failure"]
    assert first.data["attempt"] == 1


def test_a_program_that_is_not_there_fails_with_its_name(flow_home: Path) -> None:
    record = submit(flow_home, ["no-such-program"]).end("failed")
    assert "no-such-program" in record.reason


def test_retries_start_the_gang_again_in_a_new_attempt(flow_home: Path) -> None:
    text = (
        'echo "attempt $FLOW_ATTEMPT"; [ $FLOW_ATTEMPT = 3 ] || [ $RANK = 0 ] || exit 7; sleep 0.05'
    )
    gang = submit(flow_home, shell(text), nodes=2, retries={"max_retries": 2})
    record = gang.end()
    assert (record.attempt, record.retries_used) == (3, 2)
    for attempt in (1, 2, 3):
        assert gang.output(1, attempt) == f"attempt {attempt}\n"
    assert (
        "provisioning",
        "attempt 2 of 3 after first failure: node 1, rank 1: exited with 7",
    ) in gang.events


def test_retries_are_used_up(flow_home: Path) -> None:
    gang = submit(flow_home, shell("exit 7"), retries={"max_retries": 1})
    record = gang.end("failed")
    assert (record.attempt, record.retries_used) == (2, 1)
    assert record.reason == "first failure: node 0, rank 0: exited with 7"


_ONE_AT_A_TIME = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mine = open(os.path.join(os.environ["FLOW_HOME"], "rank" + os.environ["RANK"]), "w")
try:
    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(99)
if os.environ["FLOW_ATTEMPT"] == "1":
    if os.environ["RANK"] == "0":
        time.sleep(0.2)
        sys.exit(1)
    time.sleep(60)
"""


def test_no_worker_of_the_old_attempt_lives_when_the_new_one_starts(flow_home: Path) -> None:
    gang = submit(flow_home, [sys.executable, "-c", _ONE_AT_A_TIME], nodes=2, retries=1)
    assert gang.end().attempt == 2


@pytest.mark.parametrize("state", ["pending", "running"])
def test_cancel(flow_home: Path, state: str) -> None:
    gang = submit(flow_home, waiting(), nodes=2, supervise=state != "pending")
    if state == "running":
        gang.wait("running")
    assert launch.cancel(gang.store, flow_home, gang.id)
    began = time.monotonic()
    record = gang.end("cancelled", timeout=90)
    assert time.monotonic() - began < 60
    assert record.outcome == "cancelled"
    assert record.reason.startswith("cancelled")
    if state == "running":
        assert record.reason == "cancelled while running"


def test_cancel_while_waiting_for_a_place(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    second = submit(flow_home, shell("true"), max_tasks=1)
    eventually(lambda: "waiting for a place" in second.record.reason)
    assert second.record.state == "provisioning"
    second.store.request_cancel(second.id)
    second.end("cancelled")
    let_go(flow_home)
    first.end()


def test_a_task_that_waited_gets_its_place(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    second = submit(flow_home, shell("true"), max_tasks=1)
    eventually(lambda: "waiting for a place" in second.record.reason)
    let_go(flow_home)
    first.end()
    second.end()


def test_the_agents_end_a_gang_at_its_deadline(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2, max_run_seconds=0.5, max_run_time_hours=0.5 / 3600)
    record = gang.end("failed")
    assert record.reason == "max_run_time_hours: stopped after 0.5 s"
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.finished_at - record.started_at < 6


def test_the_deadline_counts_all_attempts_together(flow_home: Path) -> None:
    gang = submit(
        flow_home,
        shell("sleep 0.6; exit 1"),
        max_run_seconds=1.5,
        max_run_time_hours=1.5 / 3600,
        retries=50,
    )
    record = gang.end("failed")
    assert (
        "max_run_time_hours: stopped after 1.5 s" in record.reason
        or "no time is left" in record.reason
    )
    assert 2 <= record.attempt <= 3


@pytest.mark.parametrize("what", ["time", "money"])
def test_no_delay_that_outlasts_the_cap_is_paid_for(flow_home: Path, what: str) -> None:
    limit = {"max_run_seconds": 60.0, "max_run_time_hours": 60 / 3600}
    caps: dict[str, Any] = limit if what == "time" else {"max_cost": 60.0}
    retries = {"max_retries": 3, "delay": 600.0}
    gang = submit(flow_home, shell("exit 1"), price=3600.0, retries=retries, **caps)
    record = gang.end("failed")
    assert record.reason.endswith(f"; no {what} is left for another attempt in 5 min")
    assert record.attempt == 1


def test_a_gang_is_stopped_when_its_money_is_used_up(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2, price=3600.0, max_cost=3.0)
    record = gang.end("failed")
    assert record.reason.startswith("max_cost: $3.00 are used up")
    assert 3.0 <= record.cost < 12.0


def test_cost_is_added_up(flow_home: Path) -> None:
    gang = submit(flow_home, shell("sleep 0.3"), nodes=2, price=3600.0)
    record = gang.end()
    assert record.finished_at is not None
    lived = [i.ended_at - i.launched_at for i in gang.store.instances(gang.id) if i.ended_at]
    assert record.cost == pytest.approx(sum(lived), rel=0.2)


def test_a_supervisor_whose_lease_was_taken_leaves_at_once(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    # Its next write finds that somebody else leads.
    lease = gang.store.acquire_lease(gang.id, "somebody else", 30, is_dead=lambda owner: True)
    assert lease is not None
    gang.store.request_cancel(gang.id)
    eventually(lambda: gang.supervisor() is None, what="the old supervisor to leave")
    assert gang.record.lease_owner == "somebody else"
    gang.store.release_lease(lease)
    gang.end("cancelled")
