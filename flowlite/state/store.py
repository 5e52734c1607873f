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
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from flowlite.errors import LeaseLost, NotFound, StoreDamaged, StoreError
from flowlite.state import clock, snapshots
from flowlite.state.database import RESTORE, Database, is_damage
from flowlite.state.records import (
    FINAL_STATES,
    Event,
    InstanceRecord,
    Intent,
    Lease,
    LeaseHolder,
    TaskRecord,
)
from flowlite.state.rows import JSON_FIELDS, KEYS, TABLES, RowDamaged, read_row

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
_UNFINISHED = "state NOT IN ('completed', 'failed', 'cancelled')"
_LEASE_COLUMNS = "id, lease_owner, lease_expires, created_at"
_ONE_OF = {"tasks": "task", "instances": "instance", "intents": "intent", "events": "event"}
_TASK_FIELDS = tuple(f.name for f in dataclasses.fields(TaskRecord))
_INSTANCE_FIELDS = tuple(f.name for f in dataclasses.fields(InstanceRecord))


class Store:
    """What is known of all tasks. Safe to use from several threads and processes."""

    def __init__(self, path: Path, *, skip_damaged: bool = False) -> None:
        """Opens the database, making or migrating it.

        Args:
            skip_damaged: Leave damaged rows out of lists, and name them in `take_damage`, for those who only look. Who
                acts on what is listed must not: an instance that is left out would be forgotten.

        Raises:
            StoreDamaged: It is damaged, or gone though tasks lie beside it.
            StoreError: It cannot be opened or written, or belongs to a newer flowlite.
        """
        self.path = path
        self._database = Database(path)
        self._skip_damaged = skip_damaged
        self._damage: dict[str, str] = {}

    def _now(self) -> float:
        return clock.now(self.path.parent)

    def close(self) -> None:
        """Closes the database. Safe to call twice."""
        self._database.close()

    def version(self) -> int:
        """A number that changes when another connection has written; cheap enough to poll."""
        return self._database.version()

    def make_sure_of_tables(self) -> None:
        """Raises StoreDamaged if the file is not the database that it was."""
        self._database.make_sure_of_tables()

    def take_damage(self) -> list[str]:
        """What was found damaged and left out since this was last asked, in words."""
        found, self._damage = self._damage, {}
        return [
            f"{name} is damaged and left out ({what}); see `flow store check`"
            for name, what in found.items()
        ]

    # Tasks

    def create_task(self, task: TaskRecord) -> None:
        """Adds a task."""
        values = {name: getattr(task, name) for name in _TASK_FIELDS}
        with self._database.write() as db:
            _insert(db, "tasks", values)
        snapshots.write(self.path.parent, task, (), ())

    def get_task(self, task_id: str) -> TaskRecord:
        """The task of that id. Raises NotFound."""
        with self._database.read() as db:
            row = db.execute("SELECT * FROM tasks WHERE id = ?", (task_id,)).fetchone()
        if row is None:
            raise NotFound(f"no task {task_id!r}; `flow status` lists the tasks")
        return self._one(TaskRecord, row)

    def task_ids(self) -> set[str]:
        """Ids of all tasks, also of those whose rows are damaged otherwise."""
        return {str(row["id"]) for row in self._rows(TaskRecord, columns="id")}

    def find_task(self, text: str) -> TaskRecord:
        """The task that is meant by an id, a name (the newest of that name) or a unique prefix of either.

        Raises:
            NotFound: None, or several different ones; the message lists those that are near.
        """
        like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        order = "created_at DESC LIMIT 50"
        exact = self._rows(TaskRecord, "id = ?", [text]) or self._rows(
            TaskRecord, "name = ?", [text], order
        )
        if exact:
            return self._one(TaskRecord, exact[0])
        near = self._rows(
            TaskRecord, r"id LIKE ? ESCAPE '\' OR name LIKE ? ESCAPE '\'", [like, like], order
        )
        if not near or not text:
            raise NotFound(f"no task {text!r}; `flow status` lists the tasks")
        names = {row["name"] for row in near}
        by_id = [row for row in near if row["id"].startswith(text)]
        if len(near) == 1 or len(by_id) == 1 or (not by_id and len(names) == 1):
            return self._one(TaskRecord, by_id[0] if len(by_id) == 1 else near[0])
        some = ", ".join(f"{row['name']} ({row['id']})" for row in near[:5])
        raise NotFound(f"{text!r} fits several tasks: {some}; give more of the name or the id")

    def list_tasks(
        self, *, limit: int | None = None, unfinished: bool = False, name: str | None = None
    ) -> list[TaskRecord]:
        """Tasks, newest first."""
        where, values = ["1"], []
        if unfinished:
            where.append(_UNFINISHED)
        if name is not None:
            where.append("name = ?")
            values.append(name)
        order = "created_at DESC, id" + (f" LIMIT {int(limit)}" if limit else "")
        rows = self._rows(TaskRecord, " AND ".join(where), values, order)
        found = self._readable(TaskRecord, rows)
        return sorted(found, key=lambda record: (-record.created_at, record.id))

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
        where, values = (
            (_UNFINISHED, []) if task_id is None else (_UNFINISHED + " AND id = ?", [task_id])
        )
        rows = self._rows(TaskRecord, where, values, columns=_LEASE_COLUMNS)
        return [
            LeaseHolder(*row)
            for row in rows
            if isinstance(row["lease_expires"], float | int)
            and isinstance(row["created_at"], float | int)
        ]

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
        self._write_snapshot(lease)

    def instances(self, task_id: str | None = None) -> list[InstanceRecord]:
        """Instances of one task by node rank, or of all tasks."""
        where, values = ("1", []) if task_id is None else ("task_id = ?", [task_id])
        rows = self._rows(InstanceRecord, where, values, "launched_at, node_rank, id")
        return self._readable(InstanceRecord, rows)

    def has_machines(self, task_id: str) -> bool:
        """Whether the task has an instance that is not known to have ended."""
        with self._database.read() as db:
            query = "SELECT 1 FROM instances WHERE task_id = ? AND ended_at IS NULL LIMIT 1"
            return db.execute(query, (task_id,)).fetchone() is not None

    def warm_instances(self, now: float) -> list[InstanceRecord]:
        """Instances of ended tasks that are kept for the next one, by when they end."""
        rows = self._rows(InstanceRecord, "state = 'warm' AND ended_at > ?", [now], "ended_at, id")
        return self._readable(InstanceRecord, rows)

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
        self._write_snapshot(lease)
        return self._one(Intent, row)

    def settle_intent(self, lease: Lease, token: str, state: str) -> None:
        """Notes how an intent came out: "done", "refused" or "undone"."""
        with self._database.write() as db:
            _check_lease(db, lease)
            _settle(db, token, state)
        self._write_snapshot(lease)

    def intents(self, task_id: str) -> list[Intent]:
        """Intents of a task, oldest first."""
        rows = self._rows(Intent, "task_id = ?", [task_id], "created_at")
        return self._readable(Intent, rows)

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
        self._write_snapshot(lease)

    def events(self, task_id: str, after: int = 0) -> list[Event]:
        """The task's history, oldest first."""
        rows = self._rows(Event, "task_id = ? AND seq > ?", [task_id, after], "seq")
        return self._readable(Event, rows)

    def _write_snapshot(self, lease: Lease) -> None:
        """Only who holds the lease writes it, so no older one comes after a newer one."""
        task_id = lease.task_id
        with suppress(StoreError):
            snapshots.write(
                self.path.parent,
                self.get_task(task_id),
                self.instances(task_id),
                self.intents(task_id),
            )

    # What may be damaged

    def _rows(
        self,
        kind: type,
        where: str = "1",
        values: Sequence[Any] = (),
        order: str = "rowid",
        columns: str = "*",
    ) -> list[sqlite3.Row]:
        """Rows of a table; where pages of it are damaged, those that can be read."""
        table = TABLES[kind]
        query = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order}"
        with self._database.read() as db:
            try:
                return db.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if not self._skip_damaged or not is_damage(error):
                    raise
                what = str(error)
                found = _salvage(
                    db, f"SELECT {columns} FROM {table} NOT INDEXED WHERE {where}", values
                )
        self._damage[f"{self.path}: a part of the table {table}"] = what
        return found

    def _readable(self, kind: type[_Row], rows: Iterable[sqlite3.Row]) -> list[_Row]:
        found = []
        for row in rows:
            try:
                found.append(self._one(kind, row))
            except StoreDamaged:
                if not self._skip_damaged:
                    raise
        return found

    def _one(self, kind: type[_Row], row: sqlite3.Row) -> _Row:
        try:
            return read_row(kind, row)
        except RowDamaged as error:
            table = TABLES[kind]
            values = dict(row)
            name = f"{self.path}: {_ONE_OF[table]} {values.get(KEYS[table])!a}"
            if table != "tasks":
                name += f" of task {values.get('task_id')!a}"
            self._damage[name] = str(error)
            raise StoreDamaged(f"{name} is damaged ({error}); {RESTORE}") from error


def _salvage(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    """What can be read from both ends of a table up to the page that is damaged."""
    found: dict[tuple[Any, ...], sqlite3.Row] = {}
    for direction in ("", " DESC"):
        with suppress(sqlite3.DatabaseError):
            for row in db.execute(f"{query} ORDER BY rowid{direction}", values):
                found.setdefault(tuple(row), row)
    return list(found.values())


def _encode(name: str, value: Any) -> Any:
    return json.dumps(value) if name in JSON_FIELDS else value


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
