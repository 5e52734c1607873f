"""A machine that one task hands to the next keeps its id, and has one row: that of the task which took it over last.

The row of a task that has handed its machine on stays, under another id and with its end, so that each task is charged
for its own time, at the prices of that time as far as the provider tells them. What is left of a minimum time goes with
the machine. Both rows change in the transaction that writes either of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any


def as_held(db: sqlite3.Connection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a row of `instances` as they have to be stored, and moves another task's row aside.

    Args:
        db: Within a transaction.
        values: The row; "data" is the provider's `Instance` as a dict.
    """
    other = db.execute(
        "SELECT task_id, launched_at, "
        "CASE WHEN json_valid(data) THEN coalesce(json_extract(data, '$.hold'), 0) ELSE 0 END "
        "FROM instances WHERE provider = ? AND id = ? AND task_id <> ?",
        (values["provider"], values["id"], values["task_id"]),
    ).fetchone()
    if other is None:
        return dict(values)
    task_id, since, hold = str(other[0]), float(other[1]), int(other[2])
    if hold > int(values["data"].get("hold") or 0):
        ended = since if values["ended_at"] is None else min(values["ended_at"], since)
        return {
            **values,
            "id": _once_handed_on(values["id"], values["task_id"]),
            "state": "ended",
            "ended_at": max(values["launched_at"], ended),
            "data": _for_good({**values["data"], "least_seconds": 0.0}),
        }
    # While the machine was kept, nobody looked at its price for the task that had it.
    prices = values["data"].get("prices")
    db.execute(
        "UPDATE instances SET id = :new, state = 'ended', "
        "ended_at = max(launched_at, min(coalesce(ended_at, :at), :at)), "
        "data = CASE WHEN NOT json_valid(data) THEN data WHEN :prices IS NOT NULL "
        "THEN json_set(data, '$.least_seconds', 0.0, '$.prices', json(:prices), '$.cost_at_most', json('false')) "
        "WHEN json_extract(data, '$.cost_at_most') "
        "THEN json_set(data, '$.least_seconds', 0.0, '$.end_is_a_bound', json('true'), "
        "'$.cost_at_most', json('false')) "
        "ELSE json_set(data, '$.least_seconds', 0.0) END "
        "WHERE provider = :provider AND id = :id",
        {
            "new": _once_handed_on(values["id"], task_id),
            "at": values["launched_at"],
            "prices": json.dumps(prices) if prices else None,
            "provider": values["provider"],
            "id": values["id"],
        },
    )
    return dict(values)


def _for_good(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a row that its provider will not be asked about again: a bound of its cost remains one."""
    bound = {"end_is_a_bound": True} if data.get("cost_at_most") else {}
    return {**data, **bound, "cost_at_most": False}


def _once_handed_on(name: str, task_id: str) -> str:
    """The id of the row of a task that has handed its machine on."""
    return f"{name}@{task_id}"
