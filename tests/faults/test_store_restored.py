"""Copies of the store, and a store that is put back while tasks run: nothing that runs is ended for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowlite.cli import main
from flowlite.errors import StoreDamaged, StoreError
from flowlite.state import backups, database, snapshots
from flowlite.state.store import Store
from flowlite.supervise.cleanup import store_copy, store_restore
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually, process_alive
from tests.test_store import task


def lose(home: Path) -> None:
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (home / name).unlink(missing_ok=True)


def scribble(home: Path) -> None:
    """Overwrites the file in place; whoever has it open notices when it reads."""
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = (home / "state.db").stat().st_size
    with open(home / "state.db", "r+b") as file:
        file.write(b"\xff" * size)


def flow(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`flow` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "flowlite.cli", *words],
        env={**os.environ, "FLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.mark.parametrize("harm", [lose, scribble], ids=["lost", "scribbled"])
@pytest.mark.parametrize("copied", [False, True], ids=["without-copy", "with-older-copy"])
def test_a_task_that_runs_goes_on_after_its_store_was_lost_and_restored(
    flow_home: Path, capsys: pytest.CaptureFixture[str], harm: object, copied: bool
) -> None:
    before = submit(flow_home, shell("true"), name="before")
    before.end()
    if copied:
        backups.take(flow_home / "state.db", backups.DAILY)
    gang = submit(flow_home, waiting("echo went on"), nodes=2)
    gang.wait("running")
    agent = gang.agent(0)
    harm(flow_home)  # type: ignore[operator]
    refused = flow(flow_home, "gc")
    assert refused.returncode == 1, refused
    assert "`flow store restore" in refused.stderr
    assert main(["store", "restore", *(["latest"] if copied else ["--empty"])]) == 0
    said = capsys.readouterr().out
    assert f"found again from their files: {gang.id}" in said or gang.id in said
    assert main(["gc"]) == 0
    assert process_alive(agent)
    let_go(flow_home)
    restored = Gang(flow_home, Store(flow_home / "state.db"), gang.store.get_task(gang.id))
    restored.end()
    assert restored.record.attempt == 1
    assert "went on" in restored.output(1)
    assert [t.name for t in restored.store.list_tasks()] == ["gang", "before"]
    assert restored.store.get_task(before.id).state == "completed"
    assert main(["store", "check"]) == 0, capsys.readouterr().out


def test_what_was_there_is_kept_and_a_whole_store_is_not_replaced_unasked(
    flow_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(flow_home, shell("true")).end()
    backups.take(flow_home / "state.db", backups.DAILY)
    assert main(["store", "restore", "latest"]) == 2
    assert "nothing is wrong" in capsys.readouterr().err
    assert main(["store", "restore", "nope"]) == 3
    capsys.readouterr()
    assert main(["store", "restore", "--json"]) == 0
    (copy,) = json.loads(capsys.readouterr().out)["data"]
    scribble(flow_home)
    damaged = (flow_home / "state.db").read_bytes()
    assert main(["store", "restore", copy["name"]]) == 0
    (aside,) = flow_home.glob("damaged/*/state.db")
    assert aside.read_bytes() == damaged
    assert not list(flow_home.glob("*.part*"))


def test_check_names_what_is_wrong(flow_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    other = submit(flow_home, shell("true"), name="other")
    other.end()
    assert main(["store", "check"]) == 0
    assert "2 tasks can be read, nothing is wrong; newest copy: none" in capsys.readouterr().out
    shutil.rmtree(other.paths.directory)
    with contextlib.closing(sqlite3.connect(flow_home / "state.db", isolation_level=None)) as db:
        db.execute(
            "UPDATE events SET data = '{' WHERE task_id = ? AND kind = 'running'", (gang.id,)
        )
    assert main(["store", "check"]) == 1
    said = capsys.readouterr().out
    assert f"task {other.id}: {other.paths.directory} is missing" in said
    assert f"of task '{gang.id}' is damaged" in said


def test_a_task_whose_row_is_broken_comes_back_with_restore(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    backups.take(flow_home / "state.db", backups.DAILY)
    with contextlib.closing(sqlite3.connect(flow_home / "state.db", isolation_level=None)) as db:
        db.execute("UPDATE tasks SET plan = '{' WHERE id = ?", (gang.id,))
    assert main(["gc"]) == 0
    assert main(["store", "restore", "latest"]) == 0
    let_go(flow_home)
    gang.end()


# Copies


@pytest.mark.parametrize("copied", [False, True], ids=["without-copy", "with-older-copy"])
def test_the_tasks_of_a_restored_store_are_in_the_order_in_which_they_came(
    flow_home: Path, copied: bool
) -> None:
    """A copy knows it. Of those that it does not have, the times of their creation tell it."""
    store = Store(flow_home / "state.db")
    # The clock was ahead when the second one came. The ids sort otherwise.
    came = [("td", 1.0), ("tc", 90.0 if copied else 2.0), ("tb", 3.0), ("te", 4.0), ("ta", 5.0)]
    for task_id, at in came:
        directory = flow_home / "tasks" / task_id
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        store.create_task(task(task_id, name="train", created_at=at))
        if copied and task_id == "tb":
            backups.take(flow_home / "state.db", backups.DAILY)
    store.close()
    lose(flow_home)
    store_restore.restore(flow_home, backups.list_backups(flow_home)[0] if copied else None)
    restored = Store(flow_home / "state.db")
    assert [each.id for each in restored.list_tasks()] == ["ta", "te", "tb", "tc", "td"]
    assert restored.find_task("train").id == "ta"


def test_a_task_without_its_snapshot_keeps_its_place_among_the_others(flow_home: Path) -> None:
    """`flow logs` shows the newest. All others are written again, which must not make them newer."""
    store = Store(flow_home / "state.db")
    for at, task_id in enumerate(("tc", "tb", "ta")):
        directory = flow_home / "tasks" / task_id
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        store.create_task(task(task_id, name="train", created_at=float(at)))
    backups.take(flow_home / "state.db", backups.DAILY)
    store.close()
    (flow_home / "tasks" / "ta" / snapshots.NAME).unlink()
    lose(flow_home)
    store_restore.restore(flow_home, backups.list_backups(flow_home)[0])
    restored = Store(flow_home / "state.db")
    assert [each.id for each in restored.list_tasks()] == ["ta", "tb", "tc"]


def test_a_new_store_has_nothing_to_copy_today(flow_home: Path) -> None:
    submit(flow_home, shell("true"), supervise=False)
    assert not backups.is_due(flow_home)
    assert not store_copy.copy_in_background(flow_home)


def test_the_first_command_of_a_day_copies_and_no_other(flow_home: Path) -> None:
    submit(flow_home, shell("true")).end()
    yesterday = time.time() - 86400
    os.utime(flow_home / "backups", (yesterday, yesterday))
    for _ in range(2):
        assert flow(flow_home, "status").returncode == 0
    (copy,) = eventually(lambda: backups.list_backups(flow_home))
    assert copy.kind == "daily"
    assert copy.path.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(copy.path)) as db:
        assert db.execute("SELECT count(*) FROM tasks").fetchone()[0] == 1
    assert not backups.is_due(flow_home)


def test_a_damaged_store_pushes_out_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(path)
    for number in range(100):
        store.create_task(task(f"t{number}", config={"padding": "x" * 500}))
    store.close()
    backups.take(path, backups.DAILY)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 3000] = b"\xff" * 3000
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="was not copied"):
        backups.take(path, backups.DAILY)
    assert len(backups.list_backups(tmp_path)) == 1


def test_a_file_that_took_the_place_of_the_store_is_refused_each_time(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(path)
    store.create_task(task("t1"))
    newer = tmp_path / "newer.db"
    with (
        contextlib.closing(sqlite3.connect(path)) as db,
        contextlib.closing(sqlite3.connect(newer)) as to,
    ):
        db.backup(to)
        to.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION + 1}")
    lose(tmp_path)
    newer.rename(path)
    for _ in range(3):
        with pytest.raises(StoreError, match="newer flowlite"):
            store.get_task("t1")


def test_copies_from_a_clock_that_was_ahead_displace_no_others(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    store.create_task(task("t1"))
    ahead = tmp_path / "backups"
    ahead.mkdir(exist_ok=True)
    for day in range(1, 8):
        (ahead / f"2199010{day}T000000-daily.db").write_bytes(b"of another time")
    for _ in range(2):
        made = backups.take(store.path, backups.DAILY)
        assert backups.list_backups(tmp_path)[0].path == made
        assert made.exists()


def test_copies_are_bounded_in_number_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "state.db").close()
    first = backups.take(tmp_path / "state.db", backups.DAILY)
    for day in range(1, 13):
        shutil.copy(first, first.with_name(f"202601{day:02}T000000-daily.db"))
    newest = backups.take(tmp_path / "state.db", backups.DAILY)
    kept = [backup.path for backup in backups.list_backups(tmp_path)]
    assert kept[0] == newest
    assert len(kept) == 7
    assert kept[-1].name.startswith("20260107T" if first == newest else "20260108T")
    monkeypatch.setattr(backups, "_MOST_BYTES", 1)
    backups.take(tmp_path / "state.db", backups.DAILY)
    assert len(backups.list_backups(tmp_path)) == 1


_STOPS_IN_BETWEEN = """
import sys, time
from pathlib import Path
from flowlite.state import backups
backups.problems_of = lambda partial: print(partial, flush=True) or time.sleep(90)
backups.take(Path(sys.argv[1]), backups.DAILY)
"""


def test_what_a_copy_that_was_killed_has_left_is_removed_a_day_later(tmp_path: Path) -> None:
    Store(tmp_path / "state.db").close()
    arguments = [sys.executable, "-c", _STOPS_IN_BETWEEN, str(tmp_path / "state.db")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as copying:
        assert copying.stdout is not None
        left = Path(copying.stdout.readline().strip())
        copying.kill()
    assert left.exists()
    backups.take(tmp_path / "state.db", backups.DAILY)
    assert left.exists(), "another process may be making it"
    os.utime(left, (time.time() - 2 * 86400,) * 2)
    backups.take(tmp_path / "state.db", backups.DAILY)
    assert not left.exists()


def test_a_copy_is_made_before_a_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "state.db")
    store.create_task(task())
    store.close()
    more = (*database.MIGRATIONS, ("ALTER TABLE intents ADD COLUMN more TEXT",))
    monkeypatch.setattr(database, "MIGRATIONS", more)
    monkeypatch.setattr(database, "SCHEMA_VERSION", len(more))
    Store(tmp_path / "state.db").close()
    (copy,) = backups.list_backups(tmp_path)
    assert copy.name.endswith(f"-schema{len(more) - 1}")
    with contextlib.closing(sqlite3.connect(copy.path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == len(more) - 1
        assert db.execute("SELECT count(*) FROM tasks").fetchone()[0] == 1


def test_a_copy_that_is_damaged_itself_is_refused(flow_home: Path) -> None:
    submit(flow_home, shell("true")).end()
    copy = backups.take(flow_home / "state.db", backups.DAILY)
    copy.write_bytes(b"x" * 5000)
    before = (flow_home / "state.db").read_bytes()
    with pytest.raises(StoreError, match="take an older one"):
        store_restore.restore(flow_home, backups.list_backups(flow_home)[0])
    assert (flow_home / "state.db").read_bytes() == before
