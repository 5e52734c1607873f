"""`flow queue`: the tasks that wait for hosts or for places of this machine, and for other tasks."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flowlite.cli import output
from flowlite.cli.common_options import Json

if TYPE_CHECKING:
    from flowlite.state.store import UnfinishedTask
    from flowlite.supervise.queue.current_queue import Queue

_COLUMNS = ("place", "name", "task", "priority", "waits for", "expected start", "submitted")
# On a narrow terminal. Places and ids are never cut.
_LEAST = {"name": 12, "waits for": 16}
_LEAVE_OUT = {"expected start": 1, "priority": 2, "submitted": 3}


def queue(json: Json = False) -> None:
    """Show the tasks that wait for their turn, in its order, and when they are expected to start."""
    from flowlite.api.session import open_session
    from flowlite.supervise.queue.current_queue import Queue

    session = open_session()
    session.ensure()
    rows = _rows(Queue.read(session.store))
    if json:
        output.print_json("queue", rows)
        return
    if not rows:
        output.say("no task waits for its turn")
        return
    output.table_of_lines(_COLUMNS, [_cells(row) for row in rows], _LEAST, _LEAVE_OUT)
    if any(row["expected_start"] is None and row["place"] for row in rows):
        output.tell(
            "an expected start is known where all tasks before it have a limit (max_run_time_hours)"
        )


def _rows(queue: Queue) -> list[dict[str, Any]]:
    places = {place.task_id: place for place in queue.places()}
    rows = []
    # Most tasks of a queue want the same slots, of which there may be a thousand.
    before: Counter[frozenset[str]] = Counter()
    users: dict[frozenset[str], list[dict[str, str]]] = {}
    for task_id, place in places.items():
        task = queue.tasks[task_id]
        slots = frozenset(str(slot) for kind in task.slots for slot in kind["slots"])
        number = 1 + sum(n for other, n in before.items() if not slots.isdisjoint(other))
        before[slots] += 1
        if slots not in users:
            users[slots] = [{"id": each.id, "name": each.name} for each in queue.users_of(task)]
        row = {"place": number, "waits_for": _wanted(task), "in_use_by": users[slots]}
        rows.append({**_common(task), **row, "expected_start": output.json_time(place.starts_at)})
    for task in sorted(queue.tasks.values(), key=lambda each: (each.created_at, each.id)):
        if task.id in places or task.state not in ("pending", "provisioning"):
            continue
        if any(request.task_id == task.id for request in queue.waiting):
            why = f"its supervisor, which is gone (`flow resume {task.id}`)"
        elif names := [_named(queue.tasks[name]) for name in task.after if name in queue.tasks]:
            why = f"the end of {', '.join(names)}"
        else:
            continue
        row = {"place": None, "waits_for": why, "in_use_by": [], "expected_start": None}
        rows.append({**_common(task), **row})
    return rows


def _common(task: UnfinishedTask) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "priority": task.priority,
        "submitted_at": output.json_time(task.created_at),
        "submitted": output.clock(task.created_at),
        "after": list(task.after),
    }


def _wanted(task: UnfinishedTask) -> str:
    count, most = max((int(kind["count"]), int(kind.get("most", 0))) for kind in task.slots)
    size = f"{count} to {most}" if most else str(count)
    return f"{size} × {task.instance_type}"


def _named(task: UnfinishedTask) -> str:
    return f"{task.name} ({task.id})"


def _cells(row: dict[str, Any]) -> list[str]:
    start = row["expected_start"]
    return [
        str(row["place"] or "-"),
        row["name"],
        row["id"],
        row["priority"],
        row["waits_for"],
        # In local time, as all times that people are shown.
        output.clock(datetime.fromisoformat(start).timestamp()) if start else "-",
        row["submitted"],
    ]
