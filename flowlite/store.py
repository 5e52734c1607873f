"""The embedded database of tasks, instances, intents, events and volumes: SQLite in WAL mode, one file per user.

Every write is one short `BEGIN IMMEDIATE` transaction (a deferred one that reads first gets SQLITE_BUSY without
waiting), durable before it returns (`synchronous=FULL`), and no network call is made inside. A supervisor writes
only under its lease: the fencing token in the row must be the one it was given, else `LeaseLost`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flowlite.errors import LeaseLost, NotFound, StoreError
from flowlite.records import (
    FINAL_STATES,
    Event,
    InstanceRecord,
    Intent,
    Lease,
    LeaseHolder,
    TaskRecord,
)

__all__ = [
    "FINAL_STATES",
    "MIGRATIONS",
    "SCHEMA_VERSION",
    "Event",
    "InstanceRecord",
    "Intent",
    "Lease",
    "LeaseHolder",
    "Store",
    "TaskRecord",
]

BUSY_TIMEOUT_SECONDS = 30.0

# Each entry brings a database from version i to i + 1, in one transaction. Never change an entry that was released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE tasks (
            id TEXT PRIMARY KEY, name TEXT NOT NULL, function TEXT NOT NULL, provider TEXT NOT NULL,
            state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', outcome TEXT NOT NULL DEFAULT '',
            config TEXT NOT NULL, plan TEXT NOT NULL, call TEXT NOT NULL,
            attempt INTEGER NOT NULL DEFAULT 0, retries_used INTEGER NOT NULL DEFAULT 0,
            roster TEXT NOT NULL DEFAULT '[]',
            created_at REAL NOT NULL, started_at REAL, finished_at REAL,
            cancel_requested_at REAL, cost REAL NOT NULL DEFAULT 0,
            lease_owner TEXT, lease_token INTEGER NOT NULL DEFAULT 0, lease_expires REAL NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX tasks_by_name ON tasks (name, created_at)",
        "CREATE INDEX tasks_by_state ON tasks (state)",
        """CREATE TABLE instances (
            id TEXT NOT NULL, task_id TEXT NOT NULL REFERENCES tasks (id), provider TEXT NOT NULL,
            node_rank INTEGER, state TEXT NOT NULL, price_per_hour REAL NOT NULL,
            launched_at REAL NOT NULL, ended_at REAL, data TEXT NOT NULL,
            PRIMARY KEY (provider, id)
        )""",
        "CREATE INDEX instances_by_task ON instances (task_id)",
        """CREATE TABLE intents (
            token TEXT PRIMARY KEY, task_id TEXT NOT NULL REFERENCES tasks (id), kind TEXT NOT NULL,
            data TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, settled_at REAL
        )""",
        "CREATE INDEX intents_by_task ON intents (task_id)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL REFERENCES tasks (id),
            at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL
        )""",
        "CREATE INDEX events_by_task ON events (task_id, seq)",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)

_Row = TypeVar("_Row")

_JSON_FIELDS = frozenset({"config", "plan", "call", "roster", "data"})
_TASK_FIELDS = tuple(f.name for f in dataclasses.fields(TaskRecord))
_INSTANCE_FIELDS = tuple(f.name for f in dataclasses.fields(InstanceRecord))


class Store:
    """The database. Safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Opens the database, making or migrating it.

        Raises:
            StoreError: It cannot be opened or written, or belongs to a newer flowlite.
        """
        self.path = path
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.row_factory = sqlite3.Row
            _secure(path)
            self._prepare()
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """Closes the database. Safe to call twice."""
        with self._lock:
            self._db.close()

    def version(self) -> int:
        """A number that changes when another connection has written; cheap enough to poll."""
        with self._read() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])

    # Tasks

    def create_task(self, task: TaskRecord) -> None:
        """Adds a task."""
        values = {name: getattr(task, name) for name in _TASK_FIELDS}
        with self._write() as db:
            _insert(db, "tasks", values)

    def get_task(self, task_id: str) -> TaskRecord:
        """The task of that id. Raises NotFound."""
        with self._read() as db:
            row = db.execute("SELECT * FROM tasks WHERE id = ?", (task_id,)).fetchone()
        if row is None:
            raise NotFound(f"no task {task_id!r}; `flow status` lists the tasks")
        return _record(TaskRecord, row)

    def find_task(self, text: str) -> TaskRecord:
        """The task that is meant by an id, a name (the newest of that name) or a unique prefix of either.

        Raises:
            NotFound: None, or several different ones; the message lists those that are near.
        """
        like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        with self._read() as db:
            exact = db.execute(
                "SELECT * FROM tasks WHERE id = ? OR name = ? ORDER BY id = ? DESC, created_at DESC LIMIT 1",
                (text, text, text),
            ).fetchone()
            near = db.execute(
                r"SELECT * FROM tasks WHERE id LIKE ? ESCAPE '\' OR name LIKE ? ESCAPE '\' "
                "ORDER BY created_at DESC LIMIT 50",
                (like, like),
            ).fetchall()
        if exact is not None:
            return _record(TaskRecord, exact)
        if not near or not text:
            raise NotFound(f"no task {text!r}; `flow status` lists the tasks")
        names = {row["name"] for row in near}
        by_id = [row for row in near if row["id"].startswith(text)]
        if len(near) == 1 or len(by_id) == 1 or (not by_id and len(names) == 1):
            return _record(TaskRecord, by_id[0] if len(by_id) == 1 else near[0])
        some = ", ".join(f"{row['name']} ({row['id']})" for row in near[:5])
        raise NotFound(f"{text!r} fits several tasks: {some}; give more of the name or the id")

    def list_tasks(
        self, *, limit: int | None = None, unfinished: bool = False, name: str | None = None
    ) -> list[TaskRecord]:
        """Tasks, newest first."""
        where, values = [], []
        if unfinished:
            where.append("state NOT IN ('completed', 'failed', 'cancelled')")
        if name is not None:
            where.append("name = ?")
            values.append(name)
        query = "SELECT * FROM tasks" + (f" WHERE {' AND '.join(where)}" if where else "")
        query += " ORDER BY created_at DESC, id" + (f" LIMIT {int(limit)}" if limit else "")
        with self._read() as db:
            return [_record(TaskRecord, row) for row in db.execute(query, values)]

    def update_task(self, lease: Lease, **changes: Any) -> None:
        """Writes fields of the leased task. Raises LeaseLost if the lease was taken over."""
        with self._write() as db:
            _fenced_update(db, lease, changes)

    def request_cancel(self, task_id: str, now: float | None = None) -> bool:
        """Asks the supervisor to cancel. Returns False if the task is final already."""
        with self._write() as db:
            done = db.execute(
                "UPDATE tasks SET cancel_requested_at = COALESCE(cancel_requested_at, ?) "
                "WHERE id = ? AND state NOT IN ('completed', 'failed', 'cancelled')",
                (time.time() if now is None else now, task_id),
            )
            return done.rowcount == 1

    def cancel_requested(self, lease: Lease) -> bool:
        """Whether somebody has asked for the end of the leased task. Raises LeaseLost."""
        with self._read() as db:
            _check_lease(db, lease)
            row = db.execute(
                "SELECT cancel_requested_at FROM tasks WHERE id = ?", (lease.task_id,)
            ).fetchone()
        return row[0] is not None

    def delete_task(self, task_id: str) -> bool:
        """Forgets a final task and all that hangs on it. Returns False, and forgets nothing, if it is not final."""
        with self._write() as db:
            row = db.execute("SELECT state FROM tasks WHERE id = ?", (task_id,)).fetchone()
            if row is None or row["state"] not in FINAL_STATES:
                return False
            for table in ("events", "intents", "instances"):
                db.execute(f"DELETE FROM {table} WHERE task_id = ?", (task_id,))
            db.execute("DELETE FROM tasks WHERE id = ?", (task_id,))
            return True

    # Leases

    def acquire_lease(
        self,
        task_id: str,
        owner: str,
        seconds: float,
        *,
        now: float | None = None,
        is_dead: Callable[[str], bool] = lambda owner: False,
    ) -> Lease | None:
        """Takes the lease of a task if it is free, has lapsed, or its owner is provably dead; else None."""
        at = time.time() if now is None else now
        with self._write() as db:
            row = db.execute(
                "SELECT lease_owner, lease_token, lease_expires FROM tasks WHERE id = ?", (task_id,)
            ).fetchone()
            if row is None:
                raise NotFound(f"no task {task_id!r}")
            held = row["lease_owner"] is not None and row["lease_expires"] > at
            if held and row["lease_owner"] != owner and not is_dead(row["lease_owner"]):
                return None
            token = row["lease_token"] + 1
            db.execute(
                "UPDATE tasks SET lease_owner = ?, lease_token = ?, lease_expires = ? WHERE id = ?",
                (owner, token, at + seconds, task_id),
            )
            return Lease(task_id, owner, token)

    def renew_lease(self, lease: Lease, seconds: float, *, now: float | None = None) -> None:
        """Prolongs a lease. Raises LeaseLost."""
        at = time.time() if now is None else now
        self.update_task(lease, lease_expires=at + seconds)

    def unfinished_leases(self, task_id: str | None = None) -> list[LeaseHolder]:
        """Who looks after the unfinished tasks, or after that one if it is unfinished."""
        query = (
            "SELECT id, lease_owner, lease_expires, created_at FROM tasks "
            "WHERE state NOT IN ('completed', 'failed', 'cancelled')"
        )
        query, values = (query, []) if task_id is None else (query + " AND id = ?", [task_id])
        with self._read() as db:
            return [LeaseHolder(*row) for row in db.execute(query, values)]

    def release_lease(self, lease: Lease) -> None:
        """Gives a lease back. No error if it was lost."""
        with self._write() as db:
            db.execute(
                "UPDATE tasks SET lease_owner = NULL, lease_expires = 0 WHERE id = ? AND lease_token = ?",
                (lease.task_id, lease.token),
            )

    # Instances

    def put_instances(self, lease: Lease, instances: Sequence[InstanceRecord]) -> None:
        """Adds or replaces instances of the leased task."""
        with self._write() as db:
            _check_lease(db, lease)
            _put_instances(db, instances)

    def instances(self, task_id: str | None = None) -> list[InstanceRecord]:
        """Instances of one task by node rank, or of all tasks."""
        query, values = "SELECT * FROM instances", []
        if task_id is not None:
            query, values = query + " WHERE task_id = ?", [task_id]
        with self._read() as db:
            rows = db.execute(query + " ORDER BY launched_at, node_rank, id", values).fetchall()
        return [_record(InstanceRecord, row) for row in rows]

    # Intents

    def put_intent(self, lease: Lease, token: str, kind: str, data: Mapping[str, Any]) -> Intent:
        """Writes down, durably, what is about to be done. The same token returns what was written first."""
        with self._write() as db:
            _check_lease(db, lease)
            row = db.execute("SELECT * FROM intents WHERE token = ?", (token,)).fetchone()
            if row is None:
                values = {
                    "token": token,
                    "task_id": lease.task_id,
                    "kind": kind,
                    "data": dict(data),
                    "state": "open",
                    "created_at": time.time(),
                }
                _insert(db, "intents", values)
                row = db.execute("SELECT * FROM intents WHERE token = ?", (token,)).fetchone()
        return _record(Intent, row)

    def settle_intent(self, lease: Lease, token: str, state: str) -> None:
        """Notes how an intent came out: "done", "refused" or "undone"."""
        with self._write() as db:
            _check_lease(db, lease)
            _settle(db, token, state)

    def intents(self, task_id: str) -> list[Intent]:
        """Intents of a task, oldest first."""
        with self._read() as db:
            rows = db.execute(
                "SELECT * FROM intents WHERE task_id = ? ORDER BY created_at", (task_id,)
            ).fetchall()
        return [_record(Intent, row) for row in rows]

    # Events

    def add_event(
        self, task_id: str, kind: str, text: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Appends to the task's history."""
        self.add_events(task_id, [(kind, text, data or {})])

    def add_events(
        self, task_id: str, events: Iterable[tuple[str, str, Mapping[str, Any]]]
    ) -> None:
        """Appends several events, (kind, text, data) each, all or none."""
        with self._write() as db:
            for kind, text, data in events:
                _add_event(db, task_id, kind, text, data)

    def transition(
        self,
        lease: Lease,
        kind: str,
        text: str,
        data: Mapping[str, Any] | None = None,
        *,
        instances: Sequence[InstanceRecord] = (),
        settled: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        """Writes fields of the leased task and the event that explains them, both or none.

        Args:
            lease: The lease of the task.
            kind: Kind of the event.
            text: The event in words.
            data: The event's values.
            instances: Added or replaced together with that.
            settled: How intents came out, by token; written together with that.
            changes: Fields of the task.
        """
        with self._write() as db:
            _fenced_update(db, lease, changes)
            _put_instances(db, instances)
            for token, state in (settled or {}).items():
                _settle(db, token, state)
            _add_event(db, lease.task_id, kind, text, data)

    def events(self, task_id: str, after: int = 0) -> list[Event]:
        """The task's history, oldest first."""
        with self._read() as db:
            rows = db.execute(
                "SELECT * FROM events WHERE task_id = ? AND seq > ? ORDER BY seq", (task_id, after)
            ).fetchall()
        return [_record(Event, row) for row in rows]

    # Inside

    def _prepare(self) -> None:
        mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"{self.path}: SQLite cannot use a write-ahead log here (journal mode {mode!r}), as on network "
                "file systems; set FLOW_HOME to a directory on a local disk"
            )
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer flowlite (schema {found}, this one knows {SCHEMA_VERSION}); "
                "upgrade flowlite, or set FLOW_HOME to another directory"
            )
        if found < SCHEMA_VERSION:
            self._migrate()

    def _migrate(self) -> None:
        with self._write() as db:
            # Read again under the write lock: another process may have migrated meanwhile.
            found = db.execute("PRAGMA user_version").fetchone()[0]
            for statements in MIGRATIONS[found:]:
                for statement in statements:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise self._explain(error) from error

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        if "full" in text:
            fix = "the disk is full; free some space and try again, nothing was half-written"
        elif "readonly" in text or "unable to open" in text:
            fix = (
                "it cannot be written; make the directory writable or set FLOW_HOME to another one"
            )
        elif "locked" in text:
            fix = f"another process held it for over {BUSY_TIMEOUT_SECONDS:.0f} s; try again"
        elif "not a database" in text or "malformed" in text:
            fix = (
                "it is damaged; move it away (`flow gc` finds what is still running) and try again"
            )
        else:
            fix = "set FLOW_HOME to another directory to start afresh"
        return StoreError(f"{self.path}: {text}: {fix}")


def _secure(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        os.chmod(path, 0o600)


def _record(kind: type[_Row], row: sqlite3.Row) -> _Row:
    return kind(
        **{
            name: json.loads(row[name]) if name in _JSON_FIELDS else row[name]
            for name in row.keys()  # noqa: SIM118 - sqlite3.Row iterates over values
        }
    )


def _encode(name: str, value: Any) -> Any:
    return json.dumps(value) if name in _JSON_FIELDS else value


def _insert(
    db: sqlite3.Connection, table: str, values: Mapping[str, Any], *, replace: bool = False
) -> None:
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    marks = ", ".join("?" * len(values))
    db.execute(
        f"{verb} INTO {table} ({', '.join(values)}) VALUES ({marks})",
        [_encode(name, value) for name, value in values.items()],
    )


def _fenced_update(db: sqlite3.Connection, lease: Lease, changes: Mapping[str, Any]) -> None:
    unknown = set(changes) - set(_TASK_FIELDS)
    if unknown:
        raise StoreError(f"tasks have no field {', '.join(sorted(unknown))}")
    if not changes:
        _check_lease(db, lease)
        return
    assignments = ", ".join(f"{name} = ?" for name in changes)
    values = [_encode(name, value) for name, value in changes.items()]
    done = db.execute(
        f"UPDATE tasks SET {assignments} WHERE id = ? AND lease_token = ? AND lease_owner = ?",
        [*values, lease.task_id, lease.token, lease.owner],
    )
    if done.rowcount != 1:
        _lease_lost(lease)


def _check_lease(db: sqlite3.Connection, lease: Lease) -> None:
    row = db.execute(
        "SELECT 1 FROM tasks WHERE id = ? AND lease_token = ? AND lease_owner = ?",
        (lease.task_id, lease.token, lease.owner),
    ).fetchone()
    if row is None:
        _lease_lost(lease)


def _put_instances(db: sqlite3.Connection, instances: Sequence[InstanceRecord]) -> None:
    for instance in instances:
        values = {name: getattr(instance, name) for name in _INSTANCE_FIELDS}
        _insert(db, "instances", values, replace=True)


def _settle(db: sqlite3.Connection, token: str, state: str) -> None:
    db.execute(
        "UPDATE intents SET state = ?, settled_at = ? WHERE token = ?", (state, time.time(), token)
    )


def _lease_lost(lease: Lease) -> None:
    raise LeaseLost(f"task {lease.task_id} is led by another supervisor now (token {lease.token})")


def _add_event(
    db: sqlite3.Connection, task_id: str, kind: str, text: str, data: Mapping[str, Any] | None
) -> None:
    values = {
        "task_id": task_id,
        "at": time.time(),
        "kind": kind,
        "text": text,
        "data": dict(data or {}),
    }
    _insert(db, "events", values)
