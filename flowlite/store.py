"""The embedded store of tasks, instances, intents and events: one SQLite file per user (see database.py).

Every write is one transaction, durable before it returns, and no network call is made inside. A supervisor writes
only under its lease: the fencing token in the row must be the one it was given, else `LeaseLost`.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flowlite import clock
from flowlite.database import Database
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
    "Event",
    "InstanceRecord",
    "Intent",
    "Lease",
    "LeaseHolder",
    "Store",
    "TaskRecord",
]

_Row = TypeVar("_Row")

# Kinds of events: the task waits for somebody to have it go on, and somebody did.
_PARKED, _RESUMED = "parked", "resumed"
_JSON_FIELDS = frozenset({"config", "plan", "call", "roster", "data"})
_TASK_FIELDS = tuple(f.name for f in dataclasses.fields(TaskRecord))
_INSTANCE_FIELDS = tuple(f.name for f in dataclasses.fields(InstanceRecord))


class Store:
    """What is known of all tasks. Safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Opens the database, making or migrating it.

        Raises:
            StoreError: It cannot be opened or written, or belongs to a newer flowlite.
        """
        self.path = path
        self._database = Database(path)

    def _now(self) -> float:
        return clock.now(self.path.parent)

    def close(self) -> None:
        """Closes the database. Safe to call twice."""
        self._database.close()

    def version(self) -> int:
        """A number that changes when another connection has written; cheap enough to poll."""
        return self._database.version()

    # Tasks

    def create_task(self, task: TaskRecord) -> None:
        """Adds a task."""
        values = {name: getattr(task, name) for name in _TASK_FIELDS}
        with self._database.write() as db:
            _insert(db, "tasks", values)

    def get_task(self, task_id: str) -> TaskRecord:
        """The task of that id. Raises NotFound."""
        with self._database.read() as db:
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
        with self._database.read() as db:
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
        with self._database.read() as db:
            return [_record(TaskRecord, row) for row in db.execute(query, values)]

    def update_task(self, lease: Lease, **changes: Any) -> None:
        """Writes fields of the leased task. Raises LeaseLost if the lease was taken over."""
        with self._database.write() as db:
            _fenced_update(db, lease, changes)

    def request_cancel(self, task_id: str, now: float | None = None) -> bool:
        """Asks the supervisor to cancel. Returns False if the task is final already."""
        with self._database.write() as db:
            done = db.execute(
                "UPDATE tasks SET cancel_requested_at = COALESCE(cancel_requested_at, ?) "
                "WHERE id = ? AND state NOT IN ('completed', 'failed', 'cancelled')",
                (self._now() if now is None else now, task_id),
            )
            return done.rowcount == 1

    def cancel_requested(self, lease: Lease) -> bool:
        """Whether somebody has asked for the end of the leased task. Raises LeaseLost."""
        with self._database.read() as db:
            _check_lease(db, lease)
            row = db.execute(
                "SELECT cancel_requested_at FROM tasks WHERE id = ?", (lease.task_id,)
            ).fetchone()
        return row[0] is not None

    def resume(self, task_id: str) -> None:
        """Notes that somebody wants the task to go on: it counts as led until now."""
        with self._database.write() as db:
            db.execute("UPDATE tasks SET lease_expires = ? WHERE id = ?", (self._now(), task_id))
            _add_event(db, task_id, _RESUMED, "somebody has it go on", {})

    def park(self, task_id: str, text: str) -> None:
        """Notes that the task waits for somebody to have it go on."""
        self.add_event(task_id, _PARKED, text)

    def is_parked(self, task_id: str) -> bool:
        """Whether the task waits for somebody to have it go on."""
        with self._database.read() as db:
            row = db.execute(
                "SELECT kind FROM events WHERE task_id = ? ORDER BY seq DESC LIMIT 1", (task_id,)
            ).fetchone()
        return row is not None and row[0] == _PARKED

    def delete_task(self, task_id: str) -> bool:
        """Forgets a final task and all that hangs on it. Returns False, and forgets nothing, if it is not final."""
        with self._database.write() as db:
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
        at = self._now() if now is None else now
        with self._database.write() as db:
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
        at = self._now() if now is None else now
        self.update_task(lease, lease_expires=at + seconds)

    def unfinished_leases(self, task_id: str | None = None) -> list[LeaseHolder]:
        """Who looks after the unfinished tasks, or after that one if it is unfinished."""
        query = (
            "SELECT id, lease_owner, lease_expires, created_at FROM tasks "
            "WHERE state NOT IN ('completed', 'failed', 'cancelled')"
        )
        query, values = (query, []) if task_id is None else (query + " AND id = ?", [task_id])
        with self._database.read() as db:
            return [LeaseHolder(*row) for row in db.execute(query, values)]

    def release_lease(self, lease: Lease) -> None:
        """Gives a lease back. No error if it was lost."""
        with self._database.write() as db:
            db.execute(
                "UPDATE tasks SET lease_owner = NULL, lease_expires = 0 WHERE id = ? AND lease_token = ?",
                (lease.task_id, lease.token),
            )

    # Instances

    def put_instances(self, lease: Lease, instances: Sequence[InstanceRecord]) -> None:
        """Adds or replaces instances of the leased task."""
        with self._database.write() as db:
            _check_lease(db, lease)
            _put_instances(db, instances)

    def instances(self, task_id: str | None = None) -> list[InstanceRecord]:
        """Instances of one task by node rank, or of all tasks."""
        query, values = "SELECT * FROM instances", []
        if task_id is not None:
            query, values = query + " WHERE task_id = ?", [task_id]
        with self._database.read() as db:
            rows = db.execute(query + " ORDER BY launched_at, node_rank, id", values).fetchall()
        return [_record(InstanceRecord, row) for row in rows]

    def has_machines(self, task_id: str) -> bool:
        """Whether the task has an instance that is not known to have ended."""
        with self._database.read() as db:
            query = "SELECT 1 FROM instances WHERE task_id = ? AND ended_at IS NULL LIMIT 1"
            return db.execute(query, (task_id,)).fetchone() is not None

    def warm_instances(self, now: float) -> list[InstanceRecord]:
        """Instances of ended tasks that are kept for the next one, by when they end."""
        query = (
            "SELECT * FROM instances WHERE state = 'warm' AND ended_at > ? ORDER BY ended_at, id"
        )
        with self._database.read() as db:
            return [_record(InstanceRecord, row) for row in db.execute(query, (now,))]

    def end_warm(self, ids: Sequence[str], now: float) -> None:
        """Notes that instances that were kept warm are so no more: taken over by another task, or given back."""
        if not ids:
            return
        marks = ", ".join("?" * len(ids))
        with self._database.write() as db:
            db.execute(
                "UPDATE instances SET state = 'ended', ended_at = MIN(ended_at, ?) "
                f"WHERE state = 'warm' AND id IN ({marks})",
                (now, *ids),
            )

    # Intents

    def put_intent(self, lease: Lease, token: str, kind: str, data: Mapping[str, Any]) -> Intent:
        """Writes down, durably, what is about to be done. The same token returns what was written first."""
        with self._database.write() as db:
            _check_lease(db, lease)
            row = db.execute("SELECT * FROM intents WHERE token = ?", (token,)).fetchone()
            if row is None:
                values = {
                    "token": token,
                    "task_id": lease.task_id,
                    "kind": kind,
                    "data": dict(data),
                    "state": "open",
                    "created_at": self._now(),
                }
                _insert(db, "intents", values)
                row = db.execute("SELECT * FROM intents WHERE token = ?", (token,)).fetchone()
        return _record(Intent, row)

    def settle_intent(self, lease: Lease, token: str, state: str) -> None:
        """Notes how an intent came out: "done", "refused" or "undone"."""
        with self._database.write() as db:
            _check_lease(db, lease)
            _settle(db, token, state)

    def intents(self, task_id: str) -> list[Intent]:
        """Intents of a task, oldest first."""
        with self._database.read() as db:
            rows = db.execute(
                "SELECT * FROM intents WHERE task_id = ? ORDER BY created_at", (task_id,)
            ).fetchall()
        return [_record(Intent, row) for row in rows]

    def has_open_launch(self, task_id: str) -> bool:
        """Whether the outcome of a launch of the task is not known."""
        query = (
            "SELECT 1 FROM intents WHERE task_id = ? AND kind = 'launch' AND state = 'open' LIMIT 1"
        )
        with self._database.read() as db:
            return db.execute(query, (task_id,)).fetchone() is not None

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
        with self._database.write() as db:
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
        with self._database.write() as db:
            _fenced_update(db, lease, changes)
            _put_instances(db, instances)
            for token, state in (settled or {}).items():
                _settle(db, token, state)
            _add_event(db, lease.task_id, kind, text, data)

    def events(self, task_id: str, after: int = 0) -> list[Event]:
        """The task's history, oldest first."""
        with self._database.read() as db:
            rows = db.execute(
                "SELECT * FROM events WHERE task_id = ? AND seq > ? ORDER BY seq", (task_id, after)
            ).fetchall()
        return [_record(Event, row) for row in rows]


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
