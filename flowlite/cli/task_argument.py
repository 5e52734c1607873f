"""Chooses the task of a command: the named one, or the newest one, which is then shown on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.completion import complete_task
from flowlite.cli.confirmation import can_ask, confirm
from flowlite.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from flowlite.api.client import Flow
    from flowlite.api.task import Task

OptionalTask = Annotated[
    str | None,
    typer.Argument(
        help="Id, name or unique prefix; without it, the newest task.",
        autocompletion=complete_task,
        metavar="TASK",
    ),
]
OptionalRunningTask = Annotated[
    str | None,
    typer.Argument(
        help="Id, name or unique prefix; without it, the newest task that has not ended, or else the newest one.",
        autocompletion=complete_task,
        metavar="TASK",
    ),
]
"""For commands that call `task_or_newest` with `unfinished`."""


def task_or_newest(flow: Flow, name: str | None, *, unfinished: bool = False) -> Task[Any]:
    """The task of that id, name or unique prefix. Without a name, the newest task, which is shown on standard error.

    With `unfinished`, the newest one that has not ended comes first, for commands that need its nodes. Raises NotFound.
    """
    if name is not None:
        return flow.get_task(name)
    found = flow.list_tasks(limit=1, unfinished=True) if unfinished else []
    kind = "newest unfinished task" if found else "newest task"
    found = found or flow.list_tasks(limit=1)
    if not found:
        raise NotFound("there are no tasks yet; `flow run --help` shows how to start one")
    task = found[0]
    output.tell(f"{task.name} ({task.id}), the {kind}: {task.status}")
    return task


def newest_to_cancel(flow: Flow) -> Task[Any]:
    """The newest unfinished task, after the user has confirmed that it is to be cancelled.

    Raises NotFound, or ConfigError without a terminal on which the user could be asked.
    """
    found = flow.list_tasks(limit=1, unfinished=True)
    if not found:
        raise NotFound("no task is unfinished; `flow status` lists the tasks")
    task = found[0]
    if not can_ask():
        raise ConfigError(
            f"name the TASK, since nobody can be asked here; the newest unfinished one is {task.name}: "
            f"`flow cancel {task.id}`"
        )
    output.tell(f"{task.name} ({task.id}), the newest unfinished task: {task.status}, {task.call}")
    confirm(f"Cancel {task.name} ({task.id})?", "nothing was done")
    return task
