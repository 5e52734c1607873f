"""`TaskDisplay`: shows the progress of one task on a `Screen`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from flowlite import terminal
from flowlite.display.format import cost_of, duration
from flowlite.output.printing import DIM, ColouredText
from flowlite.supervise.record.lifecycle import SENDING, STOPPING_REASONS

if TYPE_CHECKING:
    from flowlite.display.notebook import NotebookOutput
    from flowlite.display.screen import Screen
    from flowlite.display.shown_task import ShownTask
    from flowlite.state.records import TaskRecord

# Seconds between two lines about a project that is being sent, where there is no terminal.
_SENDING_LINE_EVERY = 10.0


class TaskDisplay:
    """Shows the state changes of a task, the output of its workers, and an unfinished line of one of them.

    Code that waits for the task calls `advance` repeatedly. It never blocks on the task, and may be called from several
    threads.
    """

    def __init__(
        self, task: ShownTask, screen: Screen | NotebookOutput, *, show_output: bool = True
    ) -> None:
        self._task = task
        self._screen = screen
        self._state = ""
        self._sending, self._sending_told_at = "", 0.0
        self._stopped_for = ""
        self._announced = False
        self._finished = False
        self._told_end = False
        self._lock = threading.RLock()
        self._logs = task.logs(follow=True) if show_output else None

    def announce(self) -> None:
        """Shows which task this is; only the first call has an effect."""
        with self._lock:
            if not self._announced:
                self._announced = True
                self._screen.tell(beginning(self._task))

    def advance(self, ended: bool) -> bool:
        """Shows what is new. Returns whether there was any output. If the task has ended, no more output will come."""
        with self._lock:
            if self._finished:
                return False
            self._screen.add(self)
            self._show_state()
            self._show_recording()
            moved = self._show_output(ended)
            self._show_unfinished()
            self._screen.flush()
            return moved

    def pause(self) -> None:
        """Frees the screen until the next `advance`, while no caller waits for the task."""
        self._screen.remove(self)

    def finish(self) -> None:
        """Shows the remaining output of a final task, and removes the display from the screen."""
        with self._lock:
            if not self._finished:
                self.advance(ended=True)
                self._finished = True
                self._screen.remove(self)

    def tell_end(self) -> None:
        """Shows how the task ended; only the first call has an effect."""
        with self._lock:
            if not self._told_end:
                self._told_end = True
                self._screen.tell(ending(self._task))

    def _show_state(self) -> None:
        record = self._task.record
        reason = self._new_in_reason(record)
        state = f"{record.state}: {reason}" if reason else record.state
        if state == self._state or record.final:
            return
        text = f"· {self._prefix()}{terminal.in_one_line(state)}"
        self._sending = text if reason.startswith(SENDING) else ""
        if self._sending:
            early = time.monotonic() < self._sending_told_at + _SENDING_LINE_EVERY
            if early or self._screen.has_row:
                # A terminal shows it in the last row, everything else by a line now and then.
                return
            self._sending_told_at = time.monotonic()
        self._state = state
        self._screen.tell(ColouredText(text, DIM))

    def _show_recording(self) -> None:
        news = self._task.news_of_recording()
        if news:
            self._screen.tell(ColouredText(f"· {terminal.in_one_line(news)}", DIM))

    def _new_in_reason(self, record: TaskRecord) -> str:
        """The reason of the state, without the failure that stopped the task, since that is shown once, at the end."""
        if record.state != "stopping":
            self._stopped_for = ""
            return record.reason
        if not self._stopped_for and record.reason.split("; ")[0] in STOPPING_REASONS:
            # No failure, also where it says what is being waited for.
            return record.reason
        self._stopped_for = self._stopped_for or record.reason
        # Text after the failure is news: nodes that cannot be ended, output that is still being fetched.
        return record.reason.removeprefix(self._stopped_for).removeprefix("; ")

    def _show_output(self, ended: bool) -> bool:
        moved = False
        if self._logs is not None:
            for block in self._logs.take(ended):
                self._screen.write_lines(self._labelled(block))
                moved = True
        return moved

    def _show_unfinished(self) -> None:
        if self._screen.has_row:
            line = self._logs.unfinished() if self._logs is not None else None
            if line is not None:
                self._screen.show_row(f"{self._prefix()}{line}")
            elif self._sending:
                self._screen.show_row(self._sending)
            elif not self._screen.crowded:
                self._screen.clear_row()

    def _labelled(self, block: str) -> str:
        prefix = self._prefix()
        if not prefix:
            return block
        return "".join(f"{prefix}{line}\n" for line in block.split("\n")[:-1])

    def _prefix(self) -> str:
        """The prefix of each line while other tasks are shown, too; else ""."""
        return f"{_title(self._task)} " if self._screen.crowded else ""


def beginning(task: ShownTask) -> str:
    """The task's name, its id and what it runs, in one line."""
    return f"task {_title(task)}: {terminal.in_one_line(task.function)}"


def ending(task: ShownTask) -> str:
    """How a final task ended, in one line."""
    record = task.record
    if record.state != "completed":
        why = f": {terminal.in_one_line(record.reason)}" if record.reason else ""
        return f"task {_title(task)} {record.state}{why}"
    took = duration((record.finished_at or record.created_at) - record.created_at)
    return f"task {_title(task)} completed in {took}, cost {cost_of(task)}"


def _title(task: ShownTask) -> str:
    return f"{task.name} ({task.id})"
