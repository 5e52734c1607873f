"""FLOW_HOME that is full, read-only, newer, or used by two at once: a clear error, and nothing half-written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.errors import StoreError
from flowlite.state.database import SCHEMA_VERSION
from flowlite.state.store import Store
from flowlite.supervise.process.launch import draft_task
from tests.components import need
from tests.gangs import Gang, shell, submit
from tests.helpers import (
    assert_no_process_left,
    eventually,
    kill_processes_of_home,
)

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A FLOW_HOME on a disk of 16 MB of its own."""
    need("mounts")
    directory = Path(tempfile.mkdtemp(prefix="flow-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "flowlite-test", str(directory)]
    subprocess.run(mount, check=True)
    home = directory / "home"
    monkeypatch.setenv("FLOW_HOME", str(home))
    yield home
    kill_processes_of_home(home)
    # Lazily: this process still has the database open.
    subprocess.run(["umount", "-l", str(directory)], check=True)
    directory.rmdir()


def fill(directory: Path) -> Path:
    """Takes the rest of a disk."""
    ballast = directory / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue
        finally:
            file.close()
    return ballast


def test_nothing_is_submitted_to_a_full_disk(small_disk: Path) -> None:
    submit(small_disk, shell("true")).end()
    before = sorted((small_disk / "tasks").iterdir())
    ballast = fill(small_disk)
    with pytest.raises(StoreError, match=r"(?i)full|no space left") as caught:
        submit(small_disk, shell("true"))
    assert str(small_disk) in str(caught.value)
    ballast.unlink()
    assert sorted((small_disk / "tasks").iterdir()) == before
    store = Store(small_disk / "state.db")
    assert len(store.list_tasks()) == 1
    submit(small_disk, shell("true")).end()


def test_a_disk_that_fills_up_while_a_gang_runs_loses_nothing(small_disk: Path) -> None:
    """What cannot be written down or kept meanwhile waits until there is room again."""
    go, elsewhere = small_disk / "go", tempfile.mkdtemp(prefix="flow-elsewhere-")
    text = f"""
        echo ready; while [ ! -e {elsewhere}/go ]; do sleep 0.02; done; echo full
        while [ ! -e {go} ]; do sleep 0.02; done; echo "after $RANK"
    """
    gang = submit(small_disk, shell(text), nodes=2)
    gang.wait("running")
    eventually(lambda: [p.read_text() for p in gang.paths.logs.glob("*.out")] == ["ready\n"] * 2)
    ballast = fill(small_disk)
    Path(elsewhere, "go").touch()
    time.sleep(0.5)
    ballast.unlink()
    go.touch()
    gang.end()
    shutil.rmtree(elsewhere)
    for rank in range(2):
        # The shell itself could not write while its disk was full; what it did write is here.
        assert gang.output(rank).replace("full\n", "") == f"ready\nafter {rank}\n"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory that cannot be written, not by root either."""
    home = tmp_path / "home"
    home.mkdir()
    if os.geteuid() != 0:
        home.chmod(0o500)
        yield home
        home.chmod(0o700)
        return
    # Root can write everywhere but there.
    need("mounts")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "flowlite-test", str(home)], check=True)
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_read_only_home_is_refused(read_only: Path, below: str) -> None:
    with pytest.raises(StoreError, match="FLOW_HOME") as caught, draft_task(read_only / below):
        pytest.fail("a task was drafted")
    assert str(read_only) in str(caught.value)
    assert list(read_only.iterdir()) == []


def test_a_database_of_a_newer_version_is_refused_and_no_supervisor_starts(flow_home: Path) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    gang.store.close()
    with sqlite3.connect(flow_home / "state.db") as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 7}")
    db.close()
    with pytest.raises(StoreError, match="newer flowlite"):
        submit(flow_home, shell("true"))
    assert len(list((flow_home / "tasks").iterdir())) == 1


def test_the_home_keeps_its_secrets_to_itself(flow_home: Path) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    directory = gang.paths.directory
    assert directory.stat().st_mode & 0o077 == 0
    for name in ("secret", "secrets.json"):
        assert (directory / name).stat().st_mode & 0o777 == 0o600
    assert len((directory / "secret").read_text()) == 64


_SUBMIT = """
import sys
from pathlib import Path
from tests.gangs import shell, submit
for number in range(int(sys.argv[2])):
    gang = submit(Path(sys.argv[1]), shell("true"), name=f"{sys.argv[3]}-{number}", max_tasks=8)
    gang.store.close()
    print(gang.id, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "many", [16, pytest.param(200, marks=[pytest.mark.hours, pytest.mark.heavy])]
)
def test_two_processes_submit_many_tasks_at_once(flow_home: Path, many: int) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _SUBMIT, str(flow_home), str(many // 2), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in ("a", "b")
    ]
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], [error[-500:] for _, error in said]
    ids = [task_id for output, _ in said for task_id in output.split()]
    assert len(set(ids)) == many
    store = Store(flow_home / "state.db")
    gangs = [Gang(flow_home, store, store.get_task(task_id)) for task_id in ids]
    eventually(lambda: not store.unfinished_leases(), timeout=300, every=0.2)
    states = {gang.record.state for gang in gangs}
    assert states == {"completed"}, next(g.story() for g in gangs if g.record.state != "completed")
    for gang in gangs:
        assert gang.record.attempt == 1
    for task_id in (ids[0], ids[-1]):
        assert_no_process_left(task_id)
