"""Clocks that are moved while a task runs, forwards and back, on every machine: nothing is decided by them.

A library that is preloaded moves the wall clock of programs (flowlite/testing/hosts/clock.py). Steady clocks go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.state import clock
from flowlite.state.store import TaskRecord
from flowlite.supervise.process import launch
from flowlite.testing.hosts import clock as wall_clock
from tests.components import need
from tests.faults.on_hosts import COUNT, Site, pause, shell
from tests.faults.test_hosts_outage import proves
from tests.gangs import Gang, let_go, submit, waiting
from tests.helpers import eventually

HOUR = 3600.0
MoveClock = Callable[[float], None]


@pytest.fixture
def move_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MoveClock:
    """Moves the wall clock of every process that is started from here on, not that of the test itself."""
    need("gcc")
    setting = tmp_path / wall_clock.SETTING
    wall_clock.move(setting, 0.0)
    monkeypatch.setenv("LD_PRELOAD", str(wall_clock.build(tmp_path, setting)))
    return lambda seconds: wall_clock.move(setting, seconds)


def run_time(record: TaskRecord) -> float:
    """As `flow status` shows it."""
    assert record.started_at is not None
    assert record.finished_at is not None
    return record.finished_at - record.started_at


@pytest.mark.parametrize("seconds", [2 * HOUR, -2 * HOUR], ids=["forwards", "back"])
def test_a_moved_clock_ends_no_run(flow_home: Path, move_clock: MoveClock, seconds: float) -> None:
    """Client, supervisor, agents and workers: on one machine they have one clock."""
    began = time.monotonic()
    gang = submit(flow_home, waiting(), nodes=2, max_run_seconds=600.0)
    gang.wait("running")
    move_clock(seconds)
    # The limits are looked at twice a second, leases every ten.
    pause(3.0)
    assert gang.record.state == "running", gang.story()
    # Whoever takes over finds the times of before.
    gang.kill_supervisor()
    took_over(gang)
    pause(1.5)
    assert gang.record.state == "running", gang.story()
    let_go(flow_home)
    record = gang.end()
    assert record.attempt == 1
    assert 4.5 <= run_time(record) <= time.monotonic() - began


def took_over(gang: Gang) -> None:
    """Waits until there is another supervisor."""

    def looked() -> int | None:
        launch.ensure_supervisors(gang.store, gang.home, only=gang.id)
        return gang.supervisor()

    eventually(looked, what="a supervisor that takes over")


def test_a_limit_holds_although_the_clock_is_put_back(
    flow_home: Path, move_clock: MoveClock
) -> None:
    began = time.monotonic()
    gang = submit(flow_home, waiting(), max_run_seconds=5.0, max_run_time_hours=5 / 3600)
    gang.wait("running")
    move_clock(-2 * HOUR)
    record = gang.end("failed", timeout=90)
    assert record.reason.startswith("max_run_time_hours: stopped after")
    assert run_time(record) <= time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["forwards", "back"])
def test_moved_clocks_of_hosts_and_client_end_no_run(
    site: Site, move_clock: MoveClock, seconds: float
) -> None:
    for host in site.hosts[:2]:
        host.skew_clock(1.0)
    began = time.monotonic()
    gang = site.submit(shell(COUNT), max_run_time_hours=0.1)
    gang.wait("running")
    for host, moved in zip(site.hosts[:2], (seconds, -seconds), strict=True):
        host.skew_clock(moved)
    move_clock(seconds)
    pause(5.0)
    assert gang.record.state == "running", gang.story()
    move_clock(-seconds)
    pause(5.0)
    assert gang.record.state == "running", gang.story()
    site.go()
    record = gang.end(timeout=90)
    assert record.attempt == 1
    assert 10.0 <= run_time(record) <= time.monotonic() - began
    for rank in range(2):
        gang.counted_to_the_end(rank)


@pytest.mark.slow
def test_a_run_begins_when_the_nodes_say_and_not_when_that_is_heard(site: Site) -> None:
    # The proofs before GO take four times as long, in which the laptop is cut off.
    for host in site.hosts[:2]:
        host.delay(300)
    gang = site.submit(shell(COUNT))
    eventually(lambda: proves(gang), every=0.002)
    laptop = site.cluster.laptop
    laptop.partition()
    eventually(lambda: gang.has(0, "r0.out", "3"))
    pause(12.0)
    assert gang.record.started_at is None, gang.story()
    heard = clock.now(site.home)
    laptop.heal()
    record = gang.wait("running", timeout=120)
    assert record.started_at is not None
    assert record.started_at < heard - 11.0
    site.go()
    gang.end(timeout=90)


def test_all_processes_of_a_home_have_one_clock(tmp_path: Path) -> None:
    first = clock.now(tmp_path)
    assert abs(first - time.time()) < 60.0
    clock._known.clear()
    assert 0.0 <= clock.now(tmp_path) - first < 60.0
    assert (tmp_path / clock.FILE).stat().st_mode & 0o777 == 0o600


def test_the_wall_clock_is_believed_once_and_again_when_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = clock.now(tmp_path)
    real = time.time
    for seconds in (2 * HOUR, -2 * HOUR):
        monkeypatch.setattr(clock.time, "time", lambda moved=seconds: real() + moved)
        assert abs(clock.now(tmp_path) - first) < 60.0
        clock.set_right(tmp_path)
        assert abs(clock.now(tmp_path) - first - seconds) < 60.0
        monkeypatch.setattr(clock.time, "time", real)
        clock.set_right(tmp_path)


def test_another_boot_begins_with_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / clock.FILE).write_text('{"boot": "another", "offset": 5.0}')
    assert abs(clock.now(tmp_path) - time.time()) < 60.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot": 1}', "\0" * 100])
def test_a_file_that_cannot_be_read_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / clock.FILE).write_text(content)
    now = clock.now(tmp_path)
    assert abs(now - time.time()) < 60.0
    clock._known.clear()
    assert abs(clock.now(tmp_path) - now) < 60.0


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    home = tmp_path / "none"
    assert abs(clock.now(home) - time.time()) < 60.0
    assert clock.now(home) <= clock.now(home)
    assert not home.exists()


def test_the_age_of_a_file_is_never_more_than_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    clock.now(tmp_path)
    file.touch()
    real = time.time
    monkeypatch.setattr(clock.time, "time", lambda: real() + 2 * HOUR)
    assert clock.age_of(file, tmp_path) < 60.0
