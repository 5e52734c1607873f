"""Waits for the end of a task while showing it."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING

from flowlite.display.notebook import NotebookOutput, running_cell
from flowlite.display.screen import Screen, program_screen
from flowlite.display.sweep_display import SweepDisplay
from flowlite.display.task_display import TaskDisplay
from flowlite.errors import ConfigError

if TYPE_CHECKING:
    from flowlite.display.shown_task import ShownTask

# The shortest and the longest pause between two checks of a task, in seconds.
SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 0.05
# How much longer each pause is than the one before: half a second of waiting is a pause of 15 ms.
_GROWTH = 1.02
# A pause is at least so many times as long as the check before, which takes a while for hundreds of ranks or tasks, but
# not longer than so many seconds for that: what was printed meanwhile may have taken as long.
_REST, _LONGEST_REST = 4, 1.0

# The displays of this program by task id, until the task has ended and everything has been shown.
_displays: dict[str, TaskDisplay] = {}
# Reentrant, since a signal handler may wait for a task while the thread beneath it begins to.
_lock = threading.RLock()


def _after_fork() -> None:
    # Another thread of the parent may have held the locks.
    global _lock
    _lock = threading.RLock()
    _displays.clear()


os.register_at_fork(after_in_child=_after_fork)


class Pauses:
    """Pauses that grow while there is nothing new."""

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def next(self, spent: float = 0.0) -> float:
        """Seconds until the next check; `spent` is how long the last one took."""
        pause = self._next
        self._next = min(LONGEST_PAUSE, pause * _GROWTH)
        return max(pause, min(_REST * spent, _LONGEST_REST))

    def restart(self) -> None:
        """Returns to the shortest pause, after something new."""
        self._next = SHORTEST_PAUSE


def checked_timeout(timeout: object) -> float | None:
    """Seconds to wait at most, or None for no limit. Raises ConfigError for a text, and for NaN, which never comes."""
    if timeout is None:
        return None
    # numpy's numbers are no `int`, and convert as those do.
    if not isinstance(timeout, bool | str | bytes) and hasattr(timeout, "__float__"):
        seconds = float(timeout)
        if not math.isnan(seconds):
            return seconds
    raise ConfigError(
        f"timeout={timeout!r} is not allowed; give a number of seconds, as in 600, or None for no limit"
    )


def wait_for_end(
    task: ShownTask, display: TaskDisplay | None, timeout: float | None = None
) -> bool:
    """Waits until a task is final, showing it meanwhile. Returns whether it is final."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pauses = Pauses()
    try:
        while not task.done:
            began, spent = time.monotonic(), 0.0
            if display is not None and display.advance(ended=False):
                pauses.restart()
            else:
                spent = time.monotonic() - began
            pause = pauses.next(spent)
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
    """Shows that a task was submitted, if the program is to show tasks at all."""
    if _wanted():
        _display_of(task).announce()


def display_in_program(task: ShownTask, shown: bool | None) -> TaskDisplay | None:
    """The display of a task that a program waits for; None if it is not shown.

    A program that waits again, after a timeout or in another thread, continues with the same display. A task that had
    ended before the first wait is not shown. If `shown` is None, the setting `show_logs` decides.
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
            display = _displays[task.id] = TaskDisplay(task, _surface())
    return display


def sweep_in_program(name: str, total: int | None) -> SweepDisplay:
    """The display of many tasks that a program runs together; the total is None if it is not known."""
    return SweepDisplay(name, total, _surface() if _wanted() else None)


def leave(task: ShownTask, display: TaskDisplay | None, *, tell_end: bool) -> None:
    """Ends the display of a task that is final, if it was shown.

    With `tell_end`, a failure is shown, too, since no exception will be raised for it.
    """
    if display is not None:
        if tell_end or task.record.state == "completed":
            display.tell_end()
        with _lock:
            _displays.pop(task.id, None)


def _surface() -> Screen | NotebookOutput:
    """Where a program shows a task: the output of a notebook's cell, or standard error."""
    cell = running_cell()
    return program_screen() if cell is None else NotebookOutput(cell)


def _wanted() -> bool:
    from flowlite.settings.settings import load_settings

    return str(load_settings()["show_logs"]) != "never"
