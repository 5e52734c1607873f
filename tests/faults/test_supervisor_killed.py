"""kill -9 of the supervisor, at every point of its work and in every state: the next one finishes the task properly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually, process_alive

CRASH = Path(__file__).parent / "crash"
# More than a supervisor comes by for one attempt of two nodes; those beyond the last are runs without a crash.
POINTS = 40
QUICK = (2, 6, 7, 9, 10, 17, 25, 26)
EVERY = 4


def points(numbers: range, *quick: int) -> list[Any]:
    """`make test` has the quick ones, `make test-all` every fourth, `make test-hours` all others."""

    def marks(index: int, at: int) -> list[pytest.MarkDecorator]:
        if at in quick:
            return []
        return [pytest.mark.slow, *([pytest.mark.hours] if index % EVERY else [])]

    return [
        pytest.param(at, marks=marks(index, at), id=f"{at:02d}") for index, at in enumerate(numbers)
    ]


def submit_crashing(
    home: Path, monkeypatch: pytest.MonkeyPatch, at: int, argv: list[str], **options: object
) -> tuple[Gang, Path]:
    marker = home / f"crashed-{at}"
    monkeypatch.setenv("PYTHONPATH", str(CRASH))
    monkeypatch.setenv("CRASH_AT", str(at))
    monkeypatch.setenv("CRASH_MARKER", str(marker))
    return submit(home, argv, **options), marker  # type: ignore[arg-type]


def check_a_run_without_harm(gang: Gang) -> None:
    assert gang.record.attempt == 1, gang.story()
    for rank in range(2):
        assert gang.output(rank) == f"rank {rank}\n"
    assert len(gang.store.intents(gang.id)) == 1
    states = [text for kind, text in gang.events if kind == "running"]
    assert len(states) <= 1, gang.events


@pytest.mark.parametrize("at", points(range(1, POINTS + 1), *QUICK))
def test_at_every_point_of_a_task_that_succeeds(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    gang, _ = submit_crashing(
        flow_home, monkeypatch, at, shell('sleep 0.1; echo "rank $RANK"'), nodes=2
    )
    gang.end()
    check_a_run_without_harm(gang)


@pytest.mark.parametrize("at", points(range(10, POINTS + 1), 24))
def test_at_every_point_of_a_task_that_fails(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    gang, _ = submit_crashing(
        flow_home, monkeypatch, at, shell("[ $RANK = 1 ] && exit 5; sleep 60"), nodes=2
    )
    record = gang.end("failed")
    assert record.reason == "first failure: node 1, rank 1: exited with 5"
    assert record.attempt == 1
    assert len([kind for kind, _ in gang.events if kind == "first_failure"]) == 1


@pytest.mark.parametrize("at", points(range(20, 72, 2)))
def test_at_every_other_point_of_a_task_that_is_retried(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    text = (
        'echo "attempt $FLOW_ATTEMPT"; [ $FLOW_ATTEMPT = 2 ] || [ $RANK = 0 ] || exit 7; sleep 0.1'
    )
    gang, _ = submit_crashing(flow_home, monkeypatch, at, shell(text), nodes=2, retries=1)
    record = gang.end()
    assert (record.attempt, record.retries_used) == (2, 1)
    assert [gang.output(rank, attempt=2) for rank in range(2)] == ["attempt 2\n"] * 2
    assert len(gang.store.intents(gang.id)) == 1


def test_the_points_reach_to_the_end(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tests above: a crash beyond the last point means that all points are covered."""
    gang, marker = submit_crashing(flow_home, monkeypatch, POINTS + 1, shell("true"), nodes=2)
    gang.end()
    assert not marker.exists(), (
        f"there are more than {POINTS} points; the last was {marker.read_text()}"
    )


def test_while_waiting_for_a_place(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    second = submit(flow_home, shell("true"), max_tasks=1)
    eventually(lambda: "waiting for a place" in second.record.reason)
    second.kill_supervisor()
    let_go(flow_home)
    first.end()
    second.end()


def test_while_the_gang_runs_and_nothing_is_lost(flow_home: Path) -> None:
    # It does not end before the last supervisor is killed.
    text = (
        'for i in $(seq 1 300); do echo "line $i of $RANK"; sleep 0.005; done; '
        'while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.02; done'
    )
    gang = submit(flow_home, shell(text), nodes=2)
    for _ in range(3):
        gang.wait("running")
        time.sleep(0.3)
        gang.kill_supervisor()
        gang.wait("running", "stopping")
    let_go(flow_home)
    gang.end()
    for rank in range(2):
        assert gang.output(rank) == "".join(f"line {i} of {rank}\n" for i in range(1, 301))


def test_while_the_gang_is_being_stopped(flow_home: Path) -> None:
    gang = submit(
        flow_home,
        shell(
            "[ $RANK = 1 ] && exit 5; trap '' TERM; "
            'while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.1; done'
        ),
        nodes=2,
        # It is being stopped until it is let go.
        grace_seconds=60.0,
    )
    gang.wait("stopping")
    gang.kill_supervisor()
    let_go(flow_home)
    assert gang.end("failed").reason == "first failure: node 1, rank 1: exited with 5"


def test_while_a_cancelled_gang_is_being_stopped(flow_home: Path) -> None:
    gang = submit(
        flow_home, shell("trap '' TERM; while :; do sleep 0.1; done"), nodes=2, grace_seconds=5.0
    )
    gang.wait("running")
    gang.store.request_cancel(gang.id)
    gang.wait("stopping")
    gang.kill_supervisor()
    gang.end("cancelled")


def test_the_gang_ends_while_nobody_looks_and_the_end_is_found_on_the_nodes(
    flow_home: Path,
) -> None:
    gang = submit(flow_home, waiting("echo done; [ $RANK = 0 ] || exit 3"), nodes=2)
    gang.wait("running")
    gang.kill_supervisor()
    let_go(flow_home)
    directory = gang.paths.directory
    eventually(
        lambda: any("done" in out.read_text() for out in directory.glob("nodes/*/a1/r1.out"))
    )
    assert gang.end("failed").reason == "first failure: node 1, rank 1: exited with 3"
    assert "done" in gang.output(1)


def test_the_agents_have_left_and_their_reports_tell_the_end(flow_home: Path) -> None:
    gang = submit(flow_home, waiting("echo done; [ $RANK = 0 ] && sleep 60; exit 3"), nodes=2)
    gang.wait("running")
    gang.kill_supervisor()
    agents = [gang.agent(node) for node in range(2)]
    let_go(flow_home)
    directory = gang.paths.directory
    eventually(
        lambda: any("done" in out.read_text() for out in directory.glob("nodes/*/a1/r1.out"))
    )
    for pid in reversed(agents):
        os.kill(pid, signal.SIGTERM)
        eventually(lambda pid=pid: not process_alive(pid))
    record = gang.end("failed")
    assert record.reason == "first failure: node 1, rank 1: exited with 3"
    assert gang.output(1).endswith("done\n")
