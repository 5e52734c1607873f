"""The list of tasks that `Flow.list_tasks` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowlite.api.task import Task


class TaskList(list["Task[Any]"]):
    """A list of tasks, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from flowlite.display import summaries

        return summaries.of_tasks(self)
