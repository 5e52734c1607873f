"""The store of tasks, instances, intents and events: one SQLite file per FLOW_HOME (see `database.py`).

Every write is one transaction, durable before it returns, with no network call inside. A supervisor writes only under
its lease: if the fencing token in the row is not the one of its lease, it gets `LeaseLost`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from flowlite.errors import LeaseLost, NotFound, StoreDamaged, StoreError
from flowlite.state import clock, snapshots
from flowlite.state.database import RESTORE, Database, is_damage
from flowlite.state.machine_holder import as_held
from flowlite.state.queue_rows import read_unfinished
from flowlite.state.records import (
    FINAL_STATES,
    Event,
    FullPlace,
    InstanceRecord,
    Intent,
    Lease,
    LeaseHolder,
    TaskKey,
    TaskRecord,
    UnfinishedTask,
)
from flowlite.state.rows import (
    KEYS,
    TABLES,
    RowDamaged,
    encode,
    insert_row,
    read_row,
    record_text,
    row_text,
)

__all__ = [
    "FINAL_STATES",
    "Event",
    "FullPlace",
    "InstanceRecord",
    "Intent",
    "Lease",
    "LeaseHolder",
    "Store",
    "TaskKey",
    "TaskRecord",
    "UnfinishedTask",
]

_Row = TypeVar("_Row")

# Kinds of events: the task waits for `flow resume`, and was resumed.
_PARKED, _RESUMED = "parked", "resumed"
# Every state but the final ones, also one that is damaged. With NOT IN, SQLite does not use the index, and reads every
# task that there ever was.
_UNFINISHED = (
    "(state < 'cancelled' OR state > 'cancelled' AND state < 'completed' OR state > 'completed' AND state < 'failed'"
    " OR state > 'failed')"
)
# What changes in the reason of a task while it waits or something is copied.
_VARYING = re.compile(r"\((?:[^()]|\([^()]*\))*\)|\d[\d.,:]*(?: ?[kKMGTP]?i?B\b)?")
# Tasks are in the order in which they were added. The times at which they were created may not be: the clock may have
# been wrong at one of them.
_NEWEST_FIRST = "rowid DESC"
# The same for a selection, which is found by an index and then sorted.
_SORTED = "+rowid DESC"
_LEASE_COLUMNS = "id, lease_owner, lease_expires, created_at"
_TASK_FIELDS = tuple(f.name for f in dataclasses.fields(TaskRecord))
_INSTANCE_FIELDS = tuple(f.name for f in dataclasses.fields(InstanceRecord))


class Store:
    """The store of all tasks. Safe to use from several threads and processes."""

    def __init__(self, path: Path, *, skip_damaged: bool = False) -> None:
        """Opens the database, creating or migrating it if needed.

        Args:
            skip_damaged: Leave damaged rows out of lists, and report them in `take_damage`. For callers that only
                display. Callers that act on lists must not use it: an instance that is left out would be forgotten.

        Raises:
            StoreDamaged: It is damaged, or missing although there are files of tasks beside it.
            StoreError: It cannot be opened or written, or belongs to a newer flowlite.
        """
        self.path = path
        self._database = Database(path)
        self._skip_damaged = skip_damaged
        self._damage: dict[str, str] = {}
        self._pending: dict[str, UnfinishedTask] = {}

    def _now(self) -> float:
        return clock.now(self.path.parent)

    def close(self) -> None:
        """Closes the database. Safe to call twice."""
        self._database.close()

    def version(self) -> int:
        """Returns a number that changes when another connection has written. Cheap enough to poll."""
        return self._database.version()

    def make_sure_of_tables(self) -> None:
        """Raises StoreDamaged if a table is missing."""
        self._database.make_sure_of_tables()

    def take_damage(self) -> list[str]:
        """Returns descriptions of damaged rows that were left out since the last call."""
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
            insert_row(db, "tasks", values)
        rows: dict[str, list[str]] = {"tasks": [record_text(task)], "instances": [], "intents": []}
        snapshots.write(self.path.parent, task.id, rows)

    def get_task(self, task_id: str) -> TaskRecord:
        """Returns the task with that id. Raises NotFound."""
        return self._one(TaskRecord, self._task_row(task_id))

    def _task_row(self, task_id: str) -> sqlite3.Row:
        with self._database.read() as db:
            row: sqlite3.Row | None = db.execute(
                "SELECT * FROM tasks WHERE id = ?", (task_id,)
            ).fetchone()
        if row is None:
            raise NotFound(f"no task {task_id!r}; `flow status` lists the tasks")
        return row

    def task_ids(self) -> set[str]:
        """Returns the ids of all tasks, including those whose rows are otherwise damaged."""
        return {str(row["id"]) for row in self._rows(TaskRecord, columns="id")}

    def find_task(self, text: str) -> TaskRecord:
        """Returns the task for an id, a name (the newest of that name) or a unique prefix of either.

        Raises:
            NotFound: No task fits, or several do. The message lists those that are near.
        """
        if not text.isprintable():
            # Such as bytes of a command line that are no text, which cannot be asked for.
            raise NotFound(f"no task {text!r}; `flow status` lists the tasks")
        like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        # Of many tasks of a name, the rows are long: the index tells which are read.
        named = f"rowid IN (SELECT rowid FROM tasks WHERE name = ? ORDER BY {_SORTED} LIMIT 1)"
        exact = self._rows(TaskRecord, "id = ?", [text]) or self._rows(TaskRecord, named, [text])
        if exact:
            return self._one(TaskRecord, exact[0])
        near = self._rows(
            TaskRecord,
            r"id LIKE ? ESCAPE '\' OR name LIKE ? ESCAPE '\'",
            [like, like],
            f"{_NEWEST_FIRST} LIMIT 50",
        )
        if not near or not text:
            raise NotFound(f"no task {text!r}; `flow status` lists the tasks")
        if exact := [row for row in near if row["name"] == text]:
            # The index of names is damaged, and all that can be read was read.
            return self._one(TaskRecord, exact[0])
        names = {row["name"] for row in near}
        by_id = [row for row in near if row["id"].startswith(text)]
        if len(near) == 1 or len(by_id) == 1 or (not by_id and len(names) == 1):
            return self._one(TaskRecord, by_id[0] if len(by_id) == 1 else near[0])
        some = ", ".join(f"{row['name']} ({row['id']})" for row in near[:5])
        raise NotFound(f"{text!r} fits several tasks: {some}; give more of the name or the id")

    def list_tasks(
        self,
        *,
        limit: int | None = None,
        unfinished: bool = False,
        name: str | None = None,
        provider: str | None = None,
        ids: Collection[str] | None = None,
    ) -> list[TaskRecord]:
        """Returns tasks, newest first; `ids` are those to choose from, all by default."""
        where, values = ["1"], []
        if ids is not None:
            where.append("id IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(list(ids)))
        if unfinished:
            where.append(_UNFINISHED)
        if name is not None:
            where.append("name = ?")
            values.append(name)
        if provider is not None:
            where.append("provider = ?")
            values.append(provider)
        order = _NEWEST_FIRST if len(where) == 1 else _SORTED
        order += "" if limit is None else f" LIMIT {limit}"
        rows = self._rows(TaskRecord, " AND ".join(where), values, order)
        return self._readable(TaskRecord, rows)

    def task_keys(self) -> list[TaskKey]:
        """Returns id, name and state of all tasks, newest first. The rest of their rows may be damaged."""
        rows = self._rows(TaskRecord, order=_NEWEST_FIRST, columns="id, name, state")
        return [TaskKey(str(row["id"]), str(row["name"]), str(row["state"])) for row in rows]

    def completed(self, task_ids: Collection[str]) -> set[str]:
        """Returns those of some tasks that have completed."""
        return self._among("state = 'completed'", task_ids)

    def unfinished_of(self, task_ids: Collection[str]) -> set[str]:
        """Returns those of some tasks that have not ended."""
        return self._among(_UNFINISHED, task_ids)

    def _among(self, where: str, task_ids: Collection[str]) -> set[str]:
        query = f"SELECT id FROM tasks WHERE id IN (SELECT value FROM json_each(?)) AND {where}"
        with self._database.read() as db:
            return {row[0] for row in db.execute(query, (json.dumps(list(task_ids)),))}

    def update_task(self, lease: Lease, **changes: Any) -> None:
        """Writes fields of the leased task. Raises LeaseLost if the lease was taken over."""
        with self._database.write() as db:
            _fenced_update(db, lease, changes)

    def request_cancel(self, task_id: str) -> bool:
        """Requests the cancellation of a task from its supervisor. Returns False if the task is already final."""
        with self._database.write() as db:
            done = db.execute(
                "UPDATE tasks SET cancel_requested_at = COALESCE(cancel_requested_at, ?) "
                "WHERE id = ? AND state NOT IN ('completed', 'failed', 'cancelled')",
                (self._now(), task_id),
            )
            return done.rowcount == 1

    def cancel_requested(self, lease: Lease) -> bool:
        """Whether the cancellation of the leased task was requested. Raises LeaseLost."""
        with self._database.read() as db:
            _check_lease(db, lease)
            row = db.execute(
                "SELECT cancel_requested_at FROM tasks WHERE id = ?", (lease.task_id,)
            ).fetchone()
        return row[0] is not None

    def resume(self, task_id: str) -> None:
        """Records that the user resumes the task, which counts as led until now."""
        with self._database.write() as db:
            db.execute("UPDATE tasks SET lease_expires = ? WHERE id = ?", (self._now(), task_id))
            _add_event(db, task_id, _RESUMED, "somebody has it go on", {})

    def park(self, task_id: str, text: str) -> None:
        """Records that the task waits for `flow resume`."""
        self.add_event(task_id, _PARKED, text)

    def is_parked(self, task_id: str) -> bool:
        """Whether the task waits for `flow resume`."""
        with self._database.read() as db:
            row = db.execute(
                "SELECT kind FROM events WHERE task_id = ? ORDER BY seq DESC LIMIT 1", (task_id,)
            ).fetchone()
        return row is not None and row[0] == _PARKED

    def delete_task(self, task_id: str) -> None:
        """Deletes a task with its instances, intents and events, if it is final."""
        with self._database.write() as db:
            row = db.execute("SELECT state FROM tasks WHERE id = ?", (task_id,)).fetchone()
            if row is None or row["state"] not in FINAL_STATES:
                return
            for table in ("events", "intents", "instances"):
                db.execute(f"DELETE FROM {table} WHERE task_id = ?", (task_id,))
            db.execute("DELETE FROM tasks WHERE id = ?", (task_id,))

    # Leases

    def acquire_lease(
        self,
        task_id: str,
        owner: str,
        seconds: float,
        *,
        is_dead: Callable[[str], bool] = lambda owner: False,
    ) -> Lease | None:
        """Takes the lease of a task if it is free, has expired, or its owner is provably dead; else returns None."""
        at = self._now()
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

    def renew_lease(self, lease: Lease, seconds: float) -> None:
        """Extends a lease. Raises LeaseLost."""
        self.update_task(lease, lease_expires=self._now() + seconds)

    def make_sure_of(self, lease: Lease) -> None:
        """Raises LeaseLost if the lease was taken over."""
        with self._database.read() as db:
            _check_lease(db, lease)

    def unfinished_leases(self, task_id: str | None = None) -> list[LeaseHolder]:
        """Returns the lease holders of all unfinished tasks, or of one task if it is unfinished."""
        where, values = (
            (_UNFINISHED, []) if task_id is None else (_UNFINISHED + " AND id = ?", [task_id])
        )
        # In the order of the table, they would be found by reading it.
        rows = self._rows(TaskRecord, where, values, "created_at, id", _LEASE_COLUMNS)
        return [
            LeaseHolder(*row)
            for row in rows
            if isinstance(row["lease_expires"], float | int)
            and isinstance(row["created_at"], float | int)
        ]

    def unfinished(self) -> list[UnfinishedTask]:
        """Returns what the queue needs of all unfinished tasks. Damaged rows are left out."""
        with self._database.read() as db:
            found = read_unfinished(db, self._pending)
        self._pending = {each.id: each for each in found if each.state == "pending"}
        return found

    def count_as_led(self, task_id: str) -> None:
        """Records that a task without a lease has a supervisor, which waits for its turn."""
        with self._database.write() as db:
            db.execute(
                "UPDATE tasks SET lease_expires = ? WHERE id = ? AND lease_owner IS NULL",
                (self._now(), task_id),
            )

    def note_waiting(self, task_id: str, why: str) -> None:
        """Records what a task waits for that has no lease and has not begun."""
        with self._database.write() as db:
            db.execute(
                "UPDATE tasks SET reason = ? WHERE id = ? AND lease_owner IS NULL AND state = 'pending'",
                (why, task_id),
            )

    def release_lease(self, lease: Lease) -> None:
        """Releases a lease. No error if it was lost."""
        with self._database.write() as db:
            db.execute(
                "UPDATE tasks SET lease_owner = NULL, lease_expires = ? WHERE id = ? AND lease_token = ?",
                (self._now(), lease.task_id, lease.token),
            )

    # Instances

    def put_instances(self, lease: Lease, instances: Sequence[InstanceRecord]) -> None:
        """Adds or replaces instances of the leased task."""
        with self._database.write() as db:
            _check_lease(db, lease)
            _put_instances(db, instances)
        self._write_snapshot(lease.task_id)

    def instances(self, task_id: str | None = None) -> list[InstanceRecord]:
        """Returns the instances of one task by node rank, or of all tasks."""
        return self._readable(InstanceRecord, self._instance_rows(task_id))

    def _instance_rows(self, task_id: str | None) -> list[sqlite3.Row]:
        where, values = ("1", []) if task_id is None else ("task_id = ?", [task_id])
        return self._rows(InstanceRecord, where, values, "launched_at, node_rank, id")

    def charged_instances(self) -> dict[str, list[InstanceRecord]]:
        """Returns the instances of all tasks that cost something, by task. Damaged rows count as such."""
        charged = (
            "price_per_hour IS NOT 0.0 OR NOT json_valid(data) OR json_extract(data, '$.prices') IS NOT NULL"
            " OR coalesce(json_extract(data, '$.extras_per_hour'), 0) <> 0"
        )
        rows = self._rows(InstanceRecord, charged, order="launched_at, node_rank, id")
        found: dict[str, list[InstanceRecord]] = {}
        for each in self._readable(InstanceRecord, rows):
            found.setdefault(each.task_id, []).append(each)
        return found

    def has_machines(self, task_id: str) -> bool:
        """Whether the task has an instance that is not known to have ended."""
        with self._database.read() as db:
            query = "SELECT 1 FROM instances WHERE task_id = ? AND ended_at IS NULL LIMIT 1"
            return db.execute(query, (task_id,)).fetchone() is not None

    def warm_instances(self, now: float) -> list[InstanceRecord]:
        """Returns the instances of ended tasks that are kept warm for the next one, by their end."""
        rows = self._rows(InstanceRecord, "state = 'warm' AND ended_at > ?", [now], "ended_at, id")
        return self._readable(InstanceRecord, rows)

    def kept_at_most(self, task_ids: Collection[str] | None = None) -> list[InstanceRecord]:
        """Returns the instances that are or were kept warm and of whose cost only a bound is known.

        Args:
            task_ids: Only those of these tasks; None for all.
        """
        where = "json_valid(data) AND json_extract(data, '$.cost_at_most')"
        rows = self._readable(InstanceRecord, self._rows(InstanceRecord, where, order="id"))
        return [each for each in rows if task_ids is None or each.task_id in task_ids]

    def put_kept(self, instances: Sequence[InstanceRecord]) -> None:
        """Adds or replaces instances that ended tasks have kept, except for those handed over to another task."""
        with self._database.write() as db:
            for each in instances:
                query = "SELECT task_id FROM instances WHERE provider = ? AND id = ?"
                holder = db.execute(query, (each.provider, each.id)).fetchone()
                if holder is None or holder["task_id"] == each.task_id:
                    _put_instances(db, [each])

    def end_warm(self, ids: Sequence[str], now: float) -> None:
        """Records that instances are not kept warm any more: another task took them over, or they were given back."""
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

    def put_intent(self, lease: Lease, token: str, kind: str, data: Mapping[str, Any]) -> None:
        """Records an intent durably before it is carried out. That of a known token stays as it was recorded first."""
        with self._database.write() as db:
            _check_lease(db, lease)
            if not db.execute("SELECT 1 FROM intents WHERE token = ?", (token,)).fetchone():
                values = {
                    "token": token,
                    "task_id": lease.task_id,
                    "kind": kind,
                    "data": dict(data),
                    "state": "open",
                    "created_at": self._now(),
                }
                insert_row(db, "intents", values)
        self._write_snapshot(lease.task_id)

    def settle_intent(self, lease: Lease, token: str, state: str) -> None:
        """Records the result of an intent: "done", "refused" or "undone"."""
        with self._database.write() as db:
            _check_lease(db, lease)
            _settle(db, token, state)
        self._write_snapshot(lease.task_id)

    def delete_intents(self, lease: Lease, tokens: Sequence[str]) -> None:
        """Deletes intents of the leased task that have come to nothing."""
        if not tokens:
            return
        with self._database.write() as db:
            _check_lease(db, lease)
            for token in tokens:
                db.execute(
                    "DELETE FROM intents WHERE token = ? AND task_id = ?", (token, lease.task_id)
                )
        self._write_snapshot(lease.task_id)

    def intents(self, task_id: str) -> list[Intent]:
        """Returns the intents of a task, oldest first."""
        return self._readable(Intent, self._intent_rows(task_id))

    def _intent_rows(self, task_id: str) -> list[sqlite3.Row]:
        return self._rows(Intent, "task_id = ?", [task_id], "created_at")

    def launch_times(self, task_id: str) -> list[tuple[str, str, float]]:
        """Token, state and time of each launch of a task, without its plan, which may name a thousand hosts."""
        query = "SELECT token, state, created_at FROM intents WHERE task_id = ? AND kind = 'launch'"
        with self._database.read() as db:
            return [tuple(row) for row in db.execute(query, (task_id,))]

    def has_open_launch(self, task_id: str) -> bool:
        """Whether the task has a launch whose outcome is unknown."""
        query = (
            "SELECT 1 FROM intents WHERE task_id = ? AND kind = 'launch' AND state = 'open' LIMIT 1"
        )
        with self._database.read() as db:
            return db.execute(query, (task_id,)).fetchone() is not None

    # Places without room

    def full_places(self) -> dict[str, FullPlace]:
        """Returns the places that had no room when a task of this FLOW_HOME asked last, by name."""
        with self._database.read() as db:
            rows = db.execute("SELECT place, nodes, task_id, at FROM full_places").fetchall()
        found = {}
        for row in rows:
            # Without a row that is damaged, its place is asked once more.
            with suppress(RowDamaged):
                full = read_row(FullPlace, row)
                found[full.place] = full
        return found

    # Events

    def add_event(
        self, task_id: str, kind: str, text: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Adds an event to the task's history. Raises NotFound."""
        self.add_events(task_id, [(kind, text, data or {})])

    def add_events(
        self, task_id: str, events: Iterable[tuple[str, str, Mapping[str, Any]]]
    ) -> None:
        """Adds several events, (kind, text, data) each, all or none. Raises NotFound: there is no such task."""
        with self._database.write() as db:
            try:
                for kind, text, data in events:
                    _add_event(db, task_id, kind, text, data)
            except sqlite3.IntegrityError:
                raise NotFound(f"no task {task_id!r}; `flow status` lists the tasks") from None

    def transition(
        self,
        lease: Lease,
        kind: str,
        text: str,
        data: Mapping[str, Any] | None = None,
        *,
        instances: Sequence[InstanceRecord] = (),
        settled: Mapping[str, str] | None = None,
        full: FullPlace | None = None,
        updates: bool = False,
        **changes: Any,
    ) -> None:
        """Writes fields of the leased task and the event that explains them, both or none.

        Args:
            instances: Instances to add or replace in the same transaction.
            settled: Results of intents, by token, written in the same transaction.
            full: A place that has no room, which is recorded for all tasks.
            updates: Whether of several such events, which differ in numbers only, the first and the last are kept: of
                all events of this kind that end the history.
            changes: Fields of the task.

        Raises:
            LeaseLost: The lease was taken over.
        """
        with self._database.write() as db:
            _fenced_update(db, lease, changes)
            _put_instances(db, instances)
            for token, state in (settled or {}).items():
                _settle(db, token, state)
            if full is not None:
                insert_row(db, "full_places", dataclasses.asdict(full), replace=True)
            if updates:
                _remove_later_alike(db, lease.task_id, kind, text, data)
            _add_event(db, lease.task_id, kind, text, data)
        self._write_snapshot(lease.task_id)

    def events(self, task_id: str) -> list[Event]:
        """Returns the task's history, oldest first."""
        rows = self._rows(Event, "task_id = ?", [task_id], "seq")
        return self._readable(Event, rows)

    def _write_snapshot(self, task_id: str) -> None:
        """Writes the snapshot of the leased task.

        Only the holder of the lease writes it, so an older snapshot never replaces a newer one.
        """
        with suppress(StoreError):
            rows: dict[str, tuple[type, list[sqlite3.Row]]] = {
                "tasks": (TaskRecord, [self._task_row(task_id)]),
                "instances": (InstanceRecord, self._instance_rows(task_id)),
                "intents": (Intent, self._intent_rows(task_id)),
            }
            for kind, found in rows.values():
                for row in found:
                    # Of what cannot be read, the older snapshot stays.
                    self._one(kind, row)
            texts = {
                name: [row_text(kind, row) for row in found] for name, (kind, found) in rows.items()
            }
            snapshots.write(self.path.parent, task_id, texts)

    # Reading rows that may be damaged

    def _rows(
        self,
        kind: type,
        where: str = "1",
        values: Sequence[Any] = (),
        order: str = "rowid",
        columns: str = "*",
    ) -> list[sqlite3.Row]:
        """Returns rows of a table. If pages of it are damaged, returns those that can be read."""
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
                if "DESC" not in order:
                    found.reverse()
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
            name = f"{self.path}: {table.removesuffix('s')} {values.get(KEYS[table])!a}"
            if table != "tasks":
                name += f" of task {values.get('task_id')!a}"
            self._damage[name] = str(error)
            raise StoreDamaged(f"{name} is damaged ({error}); {RESTORE}") from error


def _salvage(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    """Reads a table from both ends up to the damaged page. Returns the newest rows first."""
    found: list[list[sqlite3.Row]] = []
    seen: set[tuple[Any, ...]] = set()
    for direction in (" DESC", ""):
        rows: list[sqlite3.Row] = []
        with suppress(sqlite3.DatabaseError):
            for row in db.execute(f"{query} ORDER BY rowid{direction}", values):
                if tuple(row) not in seen:
                    seen.add(tuple(row))
                    rows.append(row)
        found.append(rows)
    newer, older = found
    return newer + older[::-1]


def _fenced_update(db: sqlite3.Connection, lease: Lease, changes: Mapping[str, Any]) -> None:
    unknown = set(changes) - set(_TASK_FIELDS)
    if unknown:
        raise StoreError(f"tasks have no field {', '.join(sorted(unknown))}")
    if not changes:
        _check_lease(db, lease)
        return
    assignments = ", ".join(f"{name} = ?" for name in changes)
    values = [encode(name, value) for name, value in changes.items()]
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
        insert_row(db, "instances", as_held(db, values), replace=True)


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
    insert_row(db, "events", values)


def _remove_later_alike(
    db: sqlite3.Connection, task_id: str, kind: str, text: str, data: Mapping[str, Any] | None
) -> None:
    """Removes the events that differ from a new one in numbers and brackets only, except for the first of them.

    Only the last events of a task count, up to one of another kind. A search for places repeats several for days.
    """
    new = (_VARYING.sub("", text), encode("data", dict(data or {})))
    alike = []
    for row in db.execute(
        "SELECT seq, kind, text, data FROM events WHERE task_id = ? ORDER BY seq DESC", (task_id,)
    ):
        if row["kind"] != kind:
            break
        if (_VARYING.sub("", row["text"]), row["data"]) == new:
            alike.append(row["seq"])
    for seq in alike[:-1]:
        db.execute("DELETE FROM events WHERE seq = ?", (seq,))
