"""Checks the store, and replaces it by a copy: `flow store check` and `flow store restore`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from flowlite.errors import StoreDamaged, StoreError
from flowlite.node.quick_dataclass import dataclass
from flowlite.state import backups, snapshots
from flowlite.state.backups import Backup
from flowlite.state.database import alone_with, claim
from flowlite.state.machine_holder import as_held
from flowlite.state.rows import insert_row
from flowlite.state.snapshots import Snapshot
from flowlite.state.store import Store
from flowlite.supervise.record import process_identity, wording
from flowlite.supervise.record.paths import TaskPaths

DAMAGED = "damaged"
_DEATH_SECONDS = 10.0
_FOUND_AGAIN = (
    "INSERT INTO events (task_id, at, kind, text, data) "
    "VALUES (?, ?, 'restored', 'found again from its files; what happened before is not in the store', '{}')"
)


@dataclass(slots=True)
class Checked:
    """The result of a check of the store.

    Attributes:
        tasks: Number of readable tasks.
        problems: What is wrong, in words.
        last_copy: Unix time of the newest copy; None if there is none.
    """

    tasks: int = 0
    problems: list[str] = field(default_factory=list)
    last_copy: float | None = None


@dataclass(slots=True)
class Restored:
    """What was done to restore a store.

    Attributes:
        aside: Directory with a copy of the previous store; None if there was none.
        supervisors: Tasks whose supervisor was ended. The next command starts it again.
        found: Tasks that were missing or outdated in the copy, and were restored from their snapshots.
        problems: What could not be restored, in words.
    """

    aside: Path | None = None
    supervisors: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check(home: Path) -> Checked:
    """Checks the structure of the file, every row, and the files of every task. Changes nothing.

    Raises:
        StoreError: The file cannot be opened, which says nothing about what is in it.
    """
    path = home / "state.db"
    found = Checked(last_copy=next((each.made_at for each in backups.list_backups(home)), None))
    if not path.exists():
        found.problems.append(f"{path} is missing")
        return found
    claim(path)
    found.problems += [f"{path}: {problem}" for problem in backups.problems_of(path)]
    try:
        store = Store(path, skip_damaged=True)
    except StoreDamaged as error:
        found.problems.append(str(error))
        return found
    with contextlib.closing(store):
        tasks = store.list_tasks()
        store.instances()
        for task in tasks:
            store.intents(task.id)
            store.events(task.id)
            found.problems += _missing_files(TaskPaths(home, task.id), final=task.final)
        found.problems += store.take_damage()
        found.tasks = len(tasks)
        known = store.task_ids()
    for snapshot in snapshots.read_all(home)[0]:
        if snapshot.task_id not in known:
            found.problems.append(
                f"{TaskPaths(home, snapshot.task_id).directory} is of a task that the store does not know; "
                "`flow store restore` finds it again"
            )
    return found


def restore(home: Path, backup: Backup | None) -> Restored:
    """Replaces the store by a copy or by an empty store, and restores missing tasks from their snapshots.

    The supervisors are ended first, which is safe at any time: the next command starts them again, and they continue
    their tasks from the snapshots. The nodes run on meanwhile.

    Args:
        backup: The copy; None for an empty store.

    Raises:
        StoreError: The store cannot be written or is used by another machine, or the copy is damaged. Nothing was
            changed.
    """
    path = home / "state.db"
    claim(path)
    fresh = path.with_name(f"state.db.{os.getpid()}.part")
    done = Restored()
    try:
        if backup is not None:
            if problems := backups.problems_of(backup.path):
                raise StoreDamaged(
                    f"{backup.path} is damaged itself: {problems[0]}; take an older one"
                )
            shutil.copyfile(backup.path, fresh)
            fresh.chmod(0o600)
        with alone_with(path):
            _make(fresh)
            done.supervisors = _end_supervisors(home)
            found, done.problems = snapshots.read_all(home)
            _find_again(fresh, found, done)
            done.aside = _set_aside(path)
            os.replace(fresh, path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be restored: {error}") from error
    finally:
        for left in (fresh, *_beside(fresh)):
            left.unlink(missing_ok=True)
    return done


def _missing_files(paths: TaskPaths, *, final: bool) -> list[str]:
    needed = [] if final else [paths.config, paths.plan, paths.secret]
    return [
        f"task {paths.task_id}: {path} is missing"
        for path in (paths.directory, *needed)
        if not path.exists()
    ][:1]


def _make(fresh: Path) -> None:
    """Migrates a copy to the current schema, or creates an empty store.

    Done in a directory of its own, because an empty store beside files of tasks counts as damaged.
    """
    apart = fresh.with_name(f"{fresh.name}.d")
    apart.mkdir(mode=0o700)
    try:
        inside = apart / "state.db"
        if fresh.exists():
            os.replace(fresh, inside)
        Store(inside).close()
        os.replace(inside, fresh)
    finally:
        shutil.rmtree(apart, ignore_errors=True)


def _end_supervisors(home: Path) -> list[str]:
    """Ends all supervisors, since they write to the store that is about to be replaced."""
    ended = []
    for directory in sorted(home.glob("tasks/*")):
        process = process_identity.noted_supervisor(home, directory.name)
        if process is None or not process.alive:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        ended.append(directory.name)
        deadline = time.monotonic() + _DEATH_SECONDS
        while process.alive:
            if time.monotonic() > deadline:
                raise StoreError(f"the supervisor of {directory.name} ({process.pid}) does not end")
            time.sleep(0.01)
    return ended


def _find_again(fresh: Path, found: list[Snapshot], done: Restored) -> None:
    """Writes the rows of the snapshots over those of the copy. Snapshots are never older.

    Tasks that the copy does not have are newer than all others.
    """
    with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db:
        for snapshot in _in_order(found):
            before = _text_of(db, snapshot.task_id)
            db.execute("BEGIN IMMEDIATE")
            db.execute("SAVEPOINT task")
            try:
                _write(db, snapshot)
            except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
                db.execute("ROLLBACK TO task")
                done.problems.append(f"task {snapshot.task_id} cannot be found again: {error}")
            db.execute("COMMIT")
            if _text_of(db, snapshot.task_id) != before:
                done.found.append(snapshot.task_id)
                db.execute(_FOUND_AGAIN, (snapshot.task_id, time.time()))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _in_order(found: Iterable[Snapshot]) -> list[Snapshot]:
    """Returns snapshots in the order in which their tasks were added, as far as their times tell it."""

    def created_at(snapshot: Snapshot) -> float:
        (task,) = snapshot.rows["tasks"]
        at = task.get("created_at")
        return at if isinstance(at, int | float) else 0.0

    return sorted(found, key=created_at)


def _text_of(db: sqlite3.Connection, task_id: str) -> tuple[Any, ...] | None:
    query = "SELECT state, attempt, roster, reason FROM tasks WHERE id = ?"
    row = db.execute(query, (task_id,)).fetchone()
    return None if row is None else tuple(row)


def _write(db: sqlite3.Connection, snapshot: Snapshot) -> None:
    query = "SELECT rowid, cancel_requested_at FROM tasks WHERE id = ?"
    known = db.execute(query, (snapshot.task_id,)).fetchone()
    for table, rows in snapshot.rows.items():
        for row in rows:
            values = dict(row)
            place = {}
            if table == "tasks" and known is not None:
                values["cancel_requested_at"] = values["cancel_requested_at"] or known[1]
                # The task keeps its place in the order of tasks.
                place = {"rowid": known[0]}
            if table == "instances":
                values = as_held(db, values)
            _check(db, table, values)
            insert_row(db, table, {**values, **place}, replace=True)


def _check(db: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> None:
    """Raises ValueError if a table lacks columns for these values."""
    columns = {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
    if not set(values) <= columns:
        raise ValueError(f"{table} has no column {', '.join(sorted(set(values) - columns))}")


def _set_aside(path: Path) -> Path | None:
    """Copies the old store and its log aside, and removes the log, which must not be applied to the new store."""
    if not path.exists():
        return None
    aside = path.parent / DAMAGED / time.strftime("%Y%m%dT%H%M%S")
    aside.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in (path, *_beside(path)):
        if file.exists():
            shutil.copy2(file, aside / file.name)
    for file in _beside(path):
        file.unlink(missing_ok=True)
    return aside


def _beside(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm")]


def age(at: float) -> str:
    """Returns the age of a copy in words."""
    return wording.duration(max(0.0, time.time() - at))
