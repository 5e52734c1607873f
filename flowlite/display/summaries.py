"""What a notebook shows of a task, of a list of tasks, and of a function: HTML, in which every text is escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowlite.display.format import cost_of, run_time
from flowlite.output import html
from flowlite.supervise import gang_size
from flowlite.supervise.money import price_text

if TYPE_CHECKING:
    from flowlite.display.shown_task import ShownTask

_MOST_TASKS = 50
_LONGEST = 200


def of_task(task: ShownTask) -> str:
    """The state of a task at this moment."""
    record = task.record
    plan = record.plan
    return html.facts(
        f"{record.name} ({record.id})",
        {
            "status": record.state,
            "reason": record.reason,
            "runs": _cut(task.call),
            "nodes": gang_size.in_words(record),
            "provider": " ".join(filter(None, (record.provider, plan.get("region")))),
            "created": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created_at)),
            "run time": run_time(record),
            "cost": cost_of(task),
            "at most": price_text.worst_case_of_task(record),
        },
    )


def of_tasks(tasks: Sequence[ShownTask]) -> str:
    """A table of tasks; of many, the first ones."""
    if not tasks:
        return "<div>no tasks</div>"
    rows = [
        (
            task.record.name,
            task.record.id,
            task.record.state,
            gang_size.in_words(task.record),
            run_time(task.record),
            cost_of(task),
            _cut(task.record.reason),
        )
        for task in tasks[:_MOST_TASKS]
    ]
    shown = html.table(("name", "id", "status", "nodes", "run time", "cost", "reason"), rows)
    more = len(tasks) - len(rows)
    return f"{shown}<div>and {more} more</div>" if more > 0 else shown


def of_function(signature: str, options: Mapping[str, Any], function: Callable[..., Any]) -> str:
    """The signature of a decorated function, the beginning of its docstring, and its options."""
    said = (function.__doc__ or "").strip().partition("\n")[0]
    values = {"": said} if said else {}
    return html.facts(
        signature, {**values, **{name: _cut(repr(value)) for name, value in options.items()}}
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
