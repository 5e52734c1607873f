"""A supervisor whose store is gone for good ends its nodes and itself; one whose store is only busy waits."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from flowlite.supervise.process import task_lease
from flowlite.supervise.process.task_lease import Patience
from tests.faults.test_rented import WAIT, rent
from tests.faults.test_rented import cloud as cloud
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import assert_no_process_left, eventually, process_alive, processes_of

HASTY = Path(__file__).parent / "hasty"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HASTY))


def drop(home: Path, *tables: str) -> None:
    with contextlib.closing(
        sqlite3.connect(home / "state.db", isolation_level=None, timeout=30)
    ) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        for table in tables:
            db.execute(f"DROP TABLE {table}")


def started(gang: Gang) -> None:
    gang.wait("running")
    eventually(lambda: [p.read_text() for p in gang.paths.logs.glob("*.out")] != [""])


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("table", ["events", "tasks"])
def test_a_table_is_missing_while_a_gang_runs(flow_home: Path, table: str) -> None:
    gang = submit(flow_home, waiting(), nodes=2)
    started(gang)
    pid = gang.supervisor()
    assert pid is not None
    drop(flow_home, table)
    eventually(lambda: not process_alive(pid), timeout=90)
    assert_no_process_left(gang.id)
    assert f"it has no table {table}" in gang.paths.supervisor_log.read_text()


@pytest.mark.usefixtures("hasty")
def test_the_whole_home_is_removed_while_a_gang_runs(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2)
    started(gang)
    pid = gang.supervisor()
    assert pid is not None
    # What the supervisor writes meanwhile keeps a directory from being removed.
    eventually(lambda: shutil.rmtree(flow_home, ignore_errors=True) or not flow_home.exists())
    eventually(lambda: not process_alive(pid), timeout=90)
    assert_no_process_left(gang.id)


@pytest.mark.usefixtures("hasty")
def test_the_store_goes_while_a_task_waits_for_a_place(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    second = submit(flow_home, shell("true"), max_tasks=1)
    eventually(lambda: "waiting for a place" in second.record.reason)
    pids = [first.supervisor(), second.supervisor()]
    drop(flow_home, "events", "intents", "instances", "tasks")
    for pid in pids:
        assert pid is not None
        eventually(lambda pid=pid: not process_alive(pid), timeout=90)
    assert_no_process_left(first.id)
    assert processes_of(second.id) == []


def test_a_store_that_is_locked_is_waited_for(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    eventually(
        lambda: any(path.read_text() for path in gang.paths.directory.glob("nodes/*/a1/r0.out"))
    )
    pid, worker = gang.supervisor(), gang.worker(0)
    with contextlib.closing(
        sqlite3.connect(flow_home / "state.db", isolation_level=None, timeout=30)
    ) as db:
        db.execute("BEGIN IMMEDIATE")
        let_go(flow_home)
        eventually(lambda: not process_alive(worker))
        assert pid is not None
        assert process_alive(pid)
        db.execute("ROLLBACK")
    gang.end()


def test_patience_counts_from_the_first_damage_and_is_short_without_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(task_lease.clock, "monotonic", lambda: now)
    patience = Patience(tmp_path / "task")
    (tmp_path / "task").mkdir()
    assert not patience.is_over()
    now += task_lease.REMOVED_SECONDS + 1
    assert not patience.is_over()
    (tmp_path / "task").rmdir()
    assert patience.is_over()
    patience.well()
    assert not patience.is_over()
    (tmp_path / "task").mkdir()
    now += task_lease.DAMAGED_SECONDS + 1
    assert patience.is_over()


def test_patience_does_not_count_from_a_damage_of_days_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang runs for days in one step of its supervisor, which says nothing of the store meanwhile."""
    now = time.monotonic()
    monkeypatch.setattr(task_lease.clock, "monotonic", lambda: now)
    patience = Patience(tmp_path)
    assert not patience.is_over()
    now += 86400.0
    for _ in range(3):
        assert not patience.is_over()
        now += task_lease.DAMAGED_SECONDS / 3
    now += 1
    assert patience.is_over()


@pytest.mark.usefixtures("cloud")
def test_rented_machines_are_ended_though_the_store_is_gone(
    cloud: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setenv("PYTHONPATH", f"{HASTY}{os.pathsep}{os.environ['PYTHONPATH']}")
    gang = rent(WAIT)
    started(gang)
    drop(gang.home, "events")
    eventually(
        lambda: all(machine["ended_at"] for machine in cloud.machines().values()),  # type: ignore[attr-defined]
        timeout=90,
    )
    eventually(lambda: gang.supervisor() is None)
