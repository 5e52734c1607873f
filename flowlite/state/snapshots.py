"""Snapshots of a task's rows beside its files, from which a task is restored if the store was lost.

A snapshot is written after each change of the task, by the process that made the change. Only `flow store restore`
reads snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import write_atomically

NAME = "rows.json"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of one task by table, as columns and values."""

    task_id: str
    rows: dict[str, list[dict[str, Any]]]


def write(home: Path, task_id: str, rows: Mapping[str, Sequence[str]]) -> None:
    """Replaces the snapshot of a task.

    None is written if the task has no directory. If the disk is full, the older one stays.

    Args:
        rows: The rows by table, each a JSON object (`rows.row_text`).
    """
    tables = (f'"{name}": [{", ".join(found)}]' for name, found in rows.items())
    body = f"{{{', '.join(tables)}}}"
    with suppress(OSError):
        write_atomically(home / "tasks" / task_id / NAME, body)


def read_all(home: Path) -> tuple[list[Snapshot], list[str]]:
    """Returns all snapshots of a FLOW_HOME, and the problems of those that cannot be read."""
    found, problems = [], []
    for directory in sorted(path.parent for path in home.glob("tasks/*/config.json")):
        try:
            body = json.loads((directory / NAME).read_bytes())
            rows = {table: list(body[table]) for table in ("tasks", "instances", "intents")}
            (task,) = rows["tasks"]
            found.append(Snapshot(str(task["id"]), rows))
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{directory / NAME} cannot be read: {error}")
    return found, problems
