"""`SweepDisplay`: shows the tasks of one `map` together: how many have ended, and each failure with its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite import terminal
from flowlite.output.printing import RED, ColouredText

if TYPE_CHECKING:
    from flowlite.display.notebook import NotebookOutput
    from flowlite.display.screen import Screen
    from flowlite.display.shown_task import ShownTask

_BAR = 20
# The longest text of a call in a line.
_LONGEST_CALL = 100


class SweepDisplay:
    """Shows a progress bar in the last row of a terminal; elsewhere a line for each tenth of the tasks.

    Whoever runs the tasks calls `started` and `ended` for each, in any order of ends; or `not_started`.
    """

    def __init__(
        self, name: str, total: int | None, screen: Screen | NotebookOutput | None
    ) -> None:
        """`total` is None while it is unknown. If `screen` is None, the display only names the inputs."""
        self._name = terminal.in_one_line(name)
        self._total = total
        self._screen = screen
        self._inputs: dict[str, int] = {}
        self._taken = 0
        self._done = self._failed = 0
        self._told = 0
        if screen is not None:
            screen.add(self)

    def started(self, task: ShownTask) -> None:
        """Takes up a task. The order of these calls is the order of the inputs."""
        self._inputs[task.id] = self._taken
        self._taken += 1

    def not_started(self, error: Exception) -> None:
        """Takes up a task that could not be started, and shows why. It counts as one that has failed."""
        name = f"input {self._taken}"
        error.add_note(f"this is {name}, whose task could not be started")
        self._taken += 1
        self._done += 1
        self._failed += 1
        if self._screen is not None:
            text = f"{name}: not started: {terminal.in_one_line(str(error))}"
            self._screen.tell(ColouredText(text, RED))
            self._screen.flush()

    def advance(self) -> None:
        """Shows the bar; called again and again while the tasks are waited for."""
        if self._screen is not None and self._screen.has_row:
            self._screen.show_row(f"{self._name} {self._bar()}{self._count()}")

    def pause(self) -> None:
        """Removes the bar until the next `advance`, while the program has a result and may print."""
        if self._screen is not None:
            self._screen.clear_row()

    def input_of(self, task: ShownTask) -> str:
        """Which input a task has: its index, from 0, and the call."""
        call = terminal.in_one_line(task.call)
        if len(call) > _LONGEST_CALL:
            call = f"{call[:_LONGEST_CALL]}…"
        return f"input {self._inputs[task.id]}, {call}"

    def ended(self, task: ShownTask, *, tell: bool) -> None:
        """Counts a task that has ended. With `tell`, shows why it did not complete; else its exception is raised."""
        if self._screen is None:
            return
        record = task.record
        self._done += 1
        if record.state != "completed":
            self._failed += 1
            if tell:
                why = f": {terminal.in_one_line(record.reason)}" if record.reason else ""
                text = f"{self.input_of(task)}: task {task.name} ({task.id}) {record.state}{why}"
                self._screen.tell(ColouredText(text, RED))
        step = max(1, (self._total or self._done) // 10)
        if not self._screen.has_row and self._done >= self._told + step:
            self._tell_count()
        self._screen.flush()

    def close(self) -> None:
        """Removes the bar. Shows the final count, unless the last line did."""
        if self._screen is None:
            return
        self._screen.remove(self)
        if self._done != self._told:
            self._tell_count()

    def _tell_count(self) -> None:
        if self._screen is not None:
            self._screen.tell(f"{self._name}: {self._count()}")
            self._told = self._done

    def _count(self) -> str:
        total = "" if self._total is None else f" of {self._total}"
        parts = [f"{self._done}{total} done"]
        running = self._taken - self._done
        if running:
            parts.append(f"{running} started")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)

    def _bar(self) -> str:
        if not self._total:
            return ""
        full = _BAR * self._done // self._total
        return f"[{'#' * full}{'.' * (_BAR - full)}] "
