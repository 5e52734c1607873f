"""Runs many tasks of one function, a few at a time, and yields their results in the order of the calls."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict

from flowlite.api import import_guard
from flowlite.errors import FlowError, TaskTimeout

if TYPE_CHECKING:
    from flowlite.api.task import Task
    from flowlite.display.sweep_display import SweepDisplay

POLL_SECONDS = 0.02
# A pause is at least so many times as long as the look at the tasks before it.
_REST = 4
PAUSE = object()
"""Yielded by a sweep that does not wait itself."""
MOST_TOGETHER = 100
"""The most tasks of a sweep that are launched together. Each has its own supervisor process, even while it waits."""

KEPT_SECONDS = 120.0
"""How long the machines of a sweep's task are kept for the next one. The program that runs the sweep ends them when
they are not needed any more; if it was killed, they end themselves then."""


# The sweeps that a program may still hold when it ends, such as in a variable of its own file.
_held: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()
_program_ends = threading.Event()
# How long the end of the program waits for the daemon threads that are taking results, in seconds.
_LONGEST_AT_EXIT = 10.0


def closed_at_exit(results: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Returns the results of a sweep, which is left when the program ends, if it was not before.

    Python itself closes generators only once nothing can be imported any more, and no task be cancelled.
    """
    _held.add(results)
    return results


@atexit.register
def _close_held() -> None:
    _program_ends.set()
    deadline = time.monotonic() + _LONGEST_AT_EXIT
    for results in list(_held):
        while not _closed(results) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _closed(results: Generator[Any, None, None]) -> bool:
    """Leaves a sweep. False if a daemon thread, which ends only after this, is taking its next result right now."""
    try:
        results.close()
    except ValueError:
        return False
    return True


# The child of a fork does not end the sweeps of its parent.
os.register_at_fork(after_in_child=_held.clear)


class Results(Iterator[Any]):
    """The results of a sweep. Warns if nobody ever asks for one, since no task is started then."""

    def __init__(self, results: Generator[Any, None, None], what: str) -> None:
        """
        Args:
            results: What starts the tasks and yields their results.
            what: The call, such as "train.map(…)", for the warning.
        """
        self._results = results
        self._what = what
        self._begun = False
        self._made_at = import_guard.users_place()

    def __next__(self) -> Any:
        self._begun = True
        return next(self._results)

    def __aiter__(self) -> Any:
        self._begun = True
        what = self._what.replace("(", ".aio(", 1)
        raise TypeError(f"{self._what} is for plain loops; write: async for result in {what}")

    def close(self) -> None:
        """Cancels the tasks that still run."""
        self._begun = True
        self._results.close()

    def __del__(self) -> None:
        if not self._begun:
            text = (
                f"{self._what} was never iterated, so no task was started; "
                f"write list({self._what}), or loop over it"
            )
            warnings.warn_explicit(text, RuntimeWarning, *self._made_at)


class Element(TypedDict):
    """The place of a task among tasks that are launched together, as stored in its plan's options["array"].

    Attributes:
        id: Id of the array, the same for all its tasks.
        index: Index of this task; SLURM_ARRAY_TASK_ID in a batch script.
        size: Number of tasks in the array.
        at_once: How many tasks may run at a time; 0 for all.
    """

    id: str
    index: int
    size: int
    at_once: int


def together(indices: Sequence[int], at_once: int) -> list[list[Element]]:
    """Splits tasks into arrays of at most `MOST_TOGETHER`, which are launched one after the other."""
    lots = [indices[i : i + MOST_TOGETHER] for i in range(0, len(indices), MOST_TOGETHER)]
    found: list[list[Element]] = []
    for lot in lots:
        name = os.urandom(5).hex()
        found.append([Element(id=name, index=i, size=len(lot), at_once=at_once) for i in lot])
    return found


def in_order(
    starts: Iterable[Callable[[], Task[Any]]],
    *,
    max_concurrent: int,
    ended_among: Callable[[Sequence[Task[Any]]], Sequence[Task[Any]]],
    pauses: bool = False,
    return_exceptions: bool = False,
    on_interrupt: Callable[[list[Task[Any]]], None] = lambda tasks: None,
    display: SweepDisplay | None = None,
    when_idle: Callable[[], None] | None = None,
) -> Iterator[Any]:
    """Starts tasks, at most `max_concurrent` at a time, and yields their results in the order of `starts`.

    With `pauses`, no step takes longer than one start or one look at the tasks: `PAUSE` is yielded in place of waiting
    for them, and after each start.

    No task is started before the first result is asked for, and at most twice `max_concurrent` ahead of the reader. If
    a task fails or the iterator is closed, the tasks that still run are cancelled. After Ctrl-C that is left to
    `on_interrupt`. Output of the tasks is not shown; `display` is told of each start and each end. `when_idle` is
    called when there is less to do than before: a task has ended, and none is left to start or has no nodes yet; or all
    have ended. `ended_among` says which of some tasks have ended.

    With `return_exceptions`, a task that cannot be started, as in an outage, is a failed one, once another was started:
    it ends no others. The first shows mistakes that all have in common.
    """
    # An exception stands for a task that could not be started.
    waiting: deque[Task[Any] | Exception] = deque()
    ended: set[int] = set()
    any_started = False
    source = iter(starts)
    more, ran = True, max_concurrent
    process = os.getpid()
    try:
        while True:
            _leave_at_exit()
            began = time.monotonic()
            left = [task for task in _tasks(waiting) if id(task) not in ended]
            # The state is read once in each round, since a task may end between two reads.
            new = ended_among(left)
            spent = time.monotonic() - began
            running = len(left) - len(new)
            for task in new:
                ended.add(id(task))
                if display is not None:
                    display.ended(task, tell=return_exceptions or task is not waiting[0])
            while more and running < max_concurrent and len(waiting) < 2 * max_concurrent:
                _leave_at_exit()
                start = next(source, None)
                if start is None:
                    more = False
                    break
                try:
                    task = start()
                except Exception as error:
                    if not (return_exceptions and any_started):
                        raise
                    waiting.append(error)
                    if display is not None:
                        display.not_started(error)
                else:
                    any_started = True
                    waiting.append(task)
                    running += 1
                    if display is not None:
                        display.started(task)
                if pauses:
                    yield PAUSE
            # A task that has no nodes yet may take those of one that has ended.
            if (
                when_idle is not None
                and not (more or running >= ran)
                and not any(_lacks_nodes(task) for task in _tasks(waiting))
            ):
                ran = running
                when_idle()
            if not waiting:
                return
            first = waiting[0]
            if not isinstance(first, Exception) and id(first) not in ended:
                if display is not None:
                    display.advance()
                if pauses:
                    yield PAUSE
                    continue
                with suppress(TaskTimeout):
                    first.wait(max(POLL_SECONDS, _REST * spent), show_logs=False)
                continue
            waiting.popleft()
            ended.discard(id(first))
            if display is not None:
                display.pause()
            if isinstance(first, Exception):
                yield first
            else:
                yield _outcome(first, return_exceptions, display)
    except KeyboardInterrupt:
        running_ones = [task for task in _tasks(waiting) if not _has_ended(task)]
        waiting.clear()
        on_interrupt(running_ones)
        raise
    finally:
        # A child of a fork has a copy, and leaves it when it ends by `sys.exit`.
        if os.getpid() == process:
            for task in _tasks(waiting):
                if not _has_ended(task):
                    with suppress(FlowError, OSError):
                        task.cancel()
            if when_idle is not None:
                when_idle()


def _tasks(waiting: Iterable[Task[Any] | Exception]) -> list[Task[Any]]:
    """Those that could be started."""
    return [each for each in waiting if not isinstance(each, Exception)]


def _leave_at_exit() -> None:
    """Ends a daemon thread that takes results while the program ends, so that the tasks are cancelled."""
    if _program_ends.is_set() and threading.current_thread().daemon:
        raise SystemExit


def _has_ended(task: Task[Any]) -> bool:
    """Whether a task has certainly ended. A look may fail, as on a full disk, while others have still to be ended."""
    try:
        return task.done
    except (FlowError, OSError):
        return False


def _lacks_nodes(task: Task[Any]) -> bool:
    return task.status in ("pending", "provisioning")


def _outcome(task: Task[Any], return_exceptions: bool, display: SweepDisplay | None) -> Any:
    try:
        return task.result(show_logs=False)
    except Exception as error:
        if display is not None:
            error.add_note(f"this is {display.input_of(task)}")
        if return_exceptions:
            return error
        raise
