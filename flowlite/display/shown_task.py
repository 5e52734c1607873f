"""The interface of a task that can be shown. `flowlite.Task` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flowlite.output.reader import Logs
    from flowlite.state.records import TaskRecord


class ShownTask(Protocol):
    """A task, as a display reads it."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def function(self) -> str:
        """What it runs."""

    @property
    def call(self) -> str:
        """What it runs in full, with the arguments."""

    @property
    def record(self) -> TaskRecord:
        """Its current row in the store."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""

    @property
    def estimated_cost(self) -> float:
        """What it has cost so far, in US dollars."""

    @property
    def cost_is_upper_bound(self) -> bool:
        """Whether it may have cost less, because the end of one of its nodes was not observed."""

    def news_of_recording(self) -> str:
        """Whether the task can still be recorded, if that has changed and was not told for any task yet; else ""."""

    def logs(self, *, follow: bool = False) -> Logs:
        """The output of its workers."""
