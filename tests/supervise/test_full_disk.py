"""The disk of FLOW_HOME has no byte left while a task runs, so that the store can record nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.errors import ConfigError, StoreError
from flowlite.settings import flow_home as flow_home_settings
from flowlite.supervise.process import launch
from tests.gangs import Gang, submit, waiting
from tests.helpers import eventually, process_alive

pytestmark = pytest.mark.needs("mounts")

ROOM = 64 << 20


@pytest.fixture
def small_disk(flow_home: Path) -> Iterator[Path]:
    """Gives FLOW_HOME a disk of its own, which can be filled."""
    aside = flow_home.with_name(f"{flow_home.name}-aside")
    shutil.copytree(flow_home, aside)
    mount("-t", "tmpfs", "-o", f"size={ROOM},mode=700", "tmpfs", str(flow_home))
    try:
        shutil.copytree(aside, flow_home, dirs_exist_ok=True)
        shutil.rmtree(aside)
        yield flow_home
        resize(flow_home, ROOM)
    finally:
        subprocess.run(["umount", "-l", str(flow_home)], check=True)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def resize(home: Path, size: int) -> None:
    mount("-o", f"remount,size={size}", str(home))


def fill(home: Path) -> None:
    """Leaves no room. What is written meanwhile may not fit any more, so it is tried again."""

    def tried() -> bool:
        facts = os.statvfs(home)
        try:
            resize(home, (facts.f_blocks - facts.f_bfree) * facts.f_frsize)
        except subprocess.CalledProcessError:
            return False
        return os.statvfs(home).f_bfree == 0

    eventually(tried)


@pytest.fixture
def gang(small_disk: Path) -> Gang:
    gang = submit(small_disk, waiting(), nodes=2)
    gang.wait("running")
    eventually(lambda: len(written(gang)) == 2)
    return gang


def written(gang: Gang) -> list[Path]:
    """The outputs of workers that have printed their process ids."""
    found = gang.paths.directory.glob("nodes/*/a1/r*.out")
    return [each for each in found if each.read_text().endswith("\n")]


def test_a_supervisor_that_lives_hears_it(small_disk: Path, gang: Gang) -> None:
    workers = [gang.worker(0), gang.worker(1)]
    fill(small_disk)
    done = flow(small_disk, "cancel", gang.id)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is being cancelled" in done.stdout
    assert gang.record.cancel_requested_at is None
    # The nodes end while there is still no room. Only the record of it waits.
    eventually(lambda: not any(process_alive(worker) for worker in workers))
    resize(small_disk, ROOM)
    gang.end("cancelled")


def test_who_waits_for_the_end_is_told_why_it_does_not_come(small_disk: Path, gang: Gang) -> None:
    fill(small_disk)
    waits = subprocess.Popen(
        [sys.executable, "-m", "flowlite.cli", "cancel", "--wait", gang.id],
        env={**os.environ, "FLOW_HOME": str(small_disk)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waits.stderr is not None
    assert waits.stderr.readline() == f"warning: {full(small_disk)}"
    resize(small_disk, ROOM)
    out, _ = waits.communicate(timeout=90)
    assert (waits.returncode, out) == (0, f"gang ({gang.id}): cancelled\n")


def test_one_that_takes_over_hears_it_too(small_disk: Path, gang: Gang) -> None:
    os.kill(gang.supervisor() or 0, signal.SIGSTOP)
    fill(small_disk)
    assert launch.cancel(gang.store, small_disk, gang.id)
    gang.kill_supervisor()
    resize(small_disk, ROOM)
    gang.end("cancelled")


def test_without_a_supervisor_it_is_refused(small_disk: Path, gang: Gang) -> None:
    gang.kill_supervisor()
    fill(small_disk)
    with pytest.raises(StoreError, match="free some space"):
        launch.cancel(gang.store, small_disk, gang.id)
    resize(small_disk, ROOM)
    assert launch.cancel(gang.store, small_disk, gang.id)
    gang.end("cancelled")


def test_a_disk_that_can_hold_no_more_files_is_not_told_as_full(small_disk: Path) -> None:
    assert flow_home_settings.why_not_writable(small_disk) == ""
    mount("-o", "remount,nr_inodes=200", str(small_disk))
    with contextlib.suppress(OSError):
        for number in range(400):
            (small_disk / f"file-{number}").touch()
    assert "no more files (`df -i`)" in flow_home_settings.why_not_writable(small_disk)
    with pytest.raises(ConfigError, match=r"can hold no more files .* set FLOW_HOME to another"):
        flow_home_settings.ensure_home()
    with (
        pytest.raises(StoreError, match=r"nothing was submitted\. Its disk can hold no more files"),
        launch.explained(small_disk),
    ):
        (small_disk / "one-more").touch()


def flow(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowlite.cli", *words],
        env={**os.environ, "FLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=90,
    )


def full(home: Path) -> str:
    return (
        f"{home} cannot be written, so nothing new about tasks is recorded: "
        "the disk is full; free some space\n"
    )


@pytest.mark.parametrize("words", [[], ["--json"], ["TASK"]])
def test_who_looks_at_the_task_is_told(small_disk: Path, gang: Gang, words: list[str]) -> None:
    fill(small_disk)
    words = [gang.id if word == "TASK" else word for word in words]
    done = flow(small_disk, "status", *words)
    assert (done.returncode, done.stderr) == (0, f"warning: {full(small_disk)}")
    assert gang.id in done.stdout
    resize(small_disk, ROOM)
    assert flow(small_disk, "status", *words).stderr == ""


def test_a_full_disk_does_not_concern_finished_tasks(small_disk: Path, gang: Gang) -> None:
    assert launch.cancel(gang.store, small_disk, gang.id)
    gang.end("cancelled")
    fill(small_disk)
    assert flow(small_disk, "status").stderr == ""


@pytest.mark.parametrize("words", [["status"], ["store", "check"], ["run", "--", "true"]])
def test_a_database_that_cannot_be_opened_for_lack_of_room_is_not_called_broken(
    small_disk: Path, words: list[str]
) -> None:
    """SQLite writes an index of its log even to read, and says "disk I/O error" if it has no room for that."""
    assert flow(small_disk, "status").returncode == 0
    # Whoever closes it last removes log and index.
    sqlite3.connect(small_disk / "state.db").execute("PRAGMA user_version").connection.close()
    assert not (small_disk / "state.db-shm").exists()
    fill(small_disk)
    done = flow(small_disk, *words)
    assert done.returncode != 0
    assert done.stderr.endswith("the disk is full; free some space\n")
    assert "restore" not in done.stdout + done.stderr
    resize(small_disk, ROOM)
    assert flow(small_disk, "status").returncode == 0


FOLLOWERS = {
    "run": ["run", "--name", "told", "-N", "2", "--", "python3", "-c", "CODE"],
    "logs": ["logs", "--follow"],
}


@pytest.mark.parametrize("command", FOLLOWERS)
def test_who_waits_for_the_task_is_told(small_disk: Path, tmp_path: Path, command: str) -> None:
    said = tmp_path / "said"
    code = "import time; print('started', flush=True); time.sleep(3600)"
    words = [code if word == "CODE" else word for word in FOLLOWERS[command]]
    if command == "logs":
        started = flow(
            small_disk, "run", "--name", "told", "--detach", "-N", "2", "--", "python3", "-c", code
        )
        assert started.returncode == 0, started.stderr
    with said.open("wb") as out:
        follower = subprocess.Popen(
            [sys.executable, "-m", "flowlite.cli", *words],
            env={**os.environ, "FLOW_HOME": str(small_disk)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: said.read_text().count("] started\n") == 2)
        fill(small_disk)
        eventually(lambda: f"· {full(small_disk)}" in said.read_text())
        resize(small_disk, ROOM)
        eventually(lambda: f"· {small_disk} can be written again" in said.read_text())
        assert said.read_text().count("the disk is full") == 1
    finally:
        resize(small_disk, ROOM)
        follower.send_signal(signal.SIGINT)
        follower.wait(timeout=60)
        flow(small_disk, "cancel", "--wait", "told")
