"""Reads what the queue needs of unfinished tasks: often, and of hundreds of tasks at a time."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from flowlite.state.records import FINAL_STATES, STATES, UnfinishedTask

_COLUMNS = "id, name, state, created_at, started_at, cancel_requested_at, lease_expires"


def read_unfinished(
    db: sqlite3.Connection, known: Mapping[str, UnfinishedTask]
) -> list[UnfinishedTask]:
    """Returns the unfinished tasks.

    Args:
        known: Tasks as they were read before, by id. Of those that are pending still, options and plan are not read
            again, since they cannot have changed.
    """
    # A condition with IN uses the index, and one with NOT IN would read every task there ever was.
    states = sorted(STATES - FINAL_STATES)
    marks = ", ".join("?" * len(states))
    rows = db.execute(f"SELECT {_COLUMNS} FROM tasks WHERE state IN ({marks})", states).fetchall()
    begun = [str(row["id"]) for row in rows if row["state"] != "pending"]
    held: defaultdict[str, list[str]] = defaultdict(list)
    query = "SELECT task_id, data FROM instances WHERE ended_at IS NULL AND task_id IN"
    for row in _of_tasks(db, query, begun):
        held[row["task_id"]].append(str(_object(row["data"]).get("slot") or ""))
    query = "SELECT task_id, created_at FROM intents WHERE kind = 'launch' AND state = 'open' AND task_id IN"
    launching = {str(r["task_id"]): r["created_at"] for r in _of_tasks(db, query, begun)}
    unread = [str(row["id"]) for row in rows if str(row["id"]) not in known]
    unread += [name for name in begun if name in known]
    asked = {
        str(row["id"]): (_object(row["config"]), _object(row["plan"]))
        for row in _of_tasks(db, "SELECT id, config, plan FROM tasks WHERE id IN", unread)
    }
    found = []
    for row in rows:
        # A damaged row is reported where its task is shown. The queue of the other tasks ignores it.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found.append(_task(row, known.get(row["id"]), asked.get(row["id"]), launching, held))
    return found


def _task(
    row: sqlite3.Row,
    before: UnfinishedTask | None,
    asked: tuple[dict[str, Any], dict[str, Any]] | None,
    launching: Mapping[str, float],
    held: Mapping[str, list[str]],
) -> UnfinishedTask:
    name = str(row["id"])
    config, plan = asked or ({}, {})
    same = before if asked is None else None
    return UnfinishedTask(
        id=name,
        name=str(row["name"]),
        state=str(row["state"]),
        created_at=_number(row["created_at"]),
        started_at=_maybe_number(row["started_at"]),
        cancel_requested=row["cancel_requested_at"] is not None,
        led_until=_number(row["lease_expires"]),
        priority=same.priority if same else str(config.get("priority") or "med"),
        after=same.after if same else _texts(config.get("after") or []),
        slots=same.slots if same else _slots(plan.get("slots") or []),
        max_run_seconds=same.max_run_seconds
        if same
        else _maybe_number(plan.get("max_run_seconds")),
        instance_type=same.instance_type if same else str(plan.get("instance_type", "")),
        launching_since=_maybe_number(launching.get(name)),
        held=tuple(held.get(name, ())),
    )


def _number(value: Any) -> float:
    # Not `isfinite`, which fails on whole numbers that no float can hold.
    if not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise ValueError
    return value


def _maybe_number(value: Any) -> float | None:
    return None if value is None else _number(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError
    return tuple(value)


def _slots(value: Any) -> tuple[dict[str, Any], ...]:
    """`Plan.slots`, with every count that `slots_of_gang` makes."""
    found = []
    for kind in value:
        counts = {name: kind[name] for name in ("count", "most", "each") if name in kind}
        if "count" not in counts or not all(
            type(each) is int and each >= 0 for each in counts.values()
        ):
            raise ValueError
        found.append({"slots": _texts(kind["slots"]), **counts})
    return tuple(found)


def _of_tasks(db: sqlite3.Connection, query: str, ids: list[str]) -> Iterable[sqlite3.Row]:
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        yield from db.execute(f"{query} ({', '.join('?' * len(some))})", some).fetchall()


def _object(text: Any) -> dict[str, Any]:
    """A JSON object, {} for a damaged one, which is reported where the row is used."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
