"""Waiting for the end of a task while it is shown."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from flowlite.display.screen import program_screen
from flowlite.display.task_display import TaskDisplay

if TYPE_CHECKING:
    from flowlite.display.shown_task import ShownTask

# The shortest and the longest pause between two looks at a task, in seconds.
SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 0.05

# Displays of this program by task id, until the task has ended and everything was shown.
_displays: dict[str, TaskDisplay] = {}
_lock = threading.Lock()


class Pauses:
    """Pauses that grow while nothing happens."""

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def next(self) -> float:
        """Seconds until the next look."""
        pause = self._next
        self._next = min(LONGEST_PAUSE, pause * 1.1)
        return pause

    def restart(self) -> None:
        """Something has happened; more may come soon."""
        self._next = SHORTEST_PAUSE


def wait_for_end(
    task: ShownTask, display: TaskDisplay | None, timeout: float | None = None
) -> bool:
    """Waits until a task is final, and shows it meanwhile. Returns whether it is final."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pauses = Pauses()
    try:
        while not task.done:
            if display is not None and display.advance(ended=False):
                pauses.restart()
            pause = pauses.next()
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
            if pause <= 0:
                return False
            time.sleep(pause)
        if display is not None:
            display.finish()
        return True
    finally:
        if display is not None:
            display.pause()


def announce_in_program(task: ShownTask) -> None:
    """Says that a task was submitted, where the program that waits for it is to see it."""
    if _wanted():
        _display_of(task).announce()


def display_in_program(task: ShownTask, shown: bool | None) -> TaskDisplay | None:
    """The display of a task that a program waits for; None for none.

    A program that waits again, after a time-out or in another thread, goes on with the same one. A task that had ended
    before anybody waited for it is not shown.

    Args:
        task: The task.
        shown: Whether it is to be shown; None for what the setting `show_logs` says.
    """
    if shown is False:
        return None
    known = _displays.get(task.id)
    if known is not None or task.done or not (shown or _wanted()):
        return known
    return _display_of(task)


def _display_of(task: ShownTask) -> TaskDisplay:
    with _lock:
        display = _displays.get(task.id)
        if display is None:
            display = _displays[task.id] = TaskDisplay(task, program_screen())
    return display


def leave(task: ShownTask, display: TaskDisplay | None, *, tell_end: bool) -> None:
    """Ends the display of a task that is final.

    Args:
        task: The task.
        display: Where it was shown, if it was.
        tell_end: Tell a failure too, since no exception will tell it.
    """
    if display is not None:
        if tell_end or task.record.state == "completed":
            display.tell_end()
        with _lock:
            _displays.pop(task.id, None)


def _wanted() -> bool:
    from flowlite.settings.settings import load_settings

    return load_settings().show_logs != "never"
