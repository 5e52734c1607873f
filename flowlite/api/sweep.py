"""Many tasks of one function: started a few at a time, results in the order of the calls."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypedDict, TypeVar

from flowlite.errors import FlowError, TaskTimeout

R_co = TypeVar("R_co", covariant=True)

POLL_SECONDS = 0.02
MOST_TOGETHER = 100
"""Tasks of a sweep that are launched together; each has a process that looks after it, also while it waits."""


class Element(TypedDict):
    """The place of a task among those that are launched together, as it stands in its plan's options["array"].

    Attributes:
        id: Of the whole, the same for all.
        index: Of this one; what a batch script calls SLURM_ARRAY_TASK_ID.
        size: How many there are.
        at_once: How many may run at a time; 0 for all.
    """

    id: str
    index: int
    size: int
    at_once: int


def together(indices: Sequence[int], at_once: int) -> list[list[Element]]:
    """The places of tasks that are launched together, in lots that are launched one after the other."""
    lots = [indices[i : i + MOST_TOGETHER] for i in range(0, len(indices), MOST_TOGETHER)]
    found: list[list[Element]] = []
    for lot in lots:
        name = secrets.token_hex(5)
        found.append([Element(id=name, index=i, size=len(lot), at_once=at_once) for i in lot])
    return found


class Running(Protocol[R_co]):
    """What is needed of a task."""

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    def result(self) -> R_co:
        """Its result; raises what it failed with."""

    def cancel(self) -> object:
        """Asks for its end."""

    def wait(self, timeout: float) -> object:
        """Waits for its end. Raises TaskTimeout."""


AnyTask = TypeVar("AnyTask", bound=Running[Any])


def in_order(
    starts: Iterable[Callable[[], AnyTask]],
    *,
    max_concurrent: int,
    return_exceptions: bool = False,
    on_interrupt: Callable[[list[AnyTask]], None] = lambda tasks: None,
) -> Iterator[Any]:
    """Starts tasks, at most `max_concurrent` at a time, and gives their results in the order of `starts`.

    Starts nothing before the first result is asked for, and no more than twice `max_concurrent` ahead of the reader.
    When one fails, or the reader leaves, or Ctrl-C is pressed, what still runs is cancelled: nobody would read it;
    after Ctrl-C that is left to `on_interrupt`.
    """
    waiting: deque[AnyTask] = deque()
    source = iter(starts)
    more = True
    try:
        while True:
            running = sum(not task.done for task in waiting)
            while more and running < max_concurrent and len(waiting) < 2 * max_concurrent:
                start = next(source, None)
                if start is None:
                    more = False
                    break
                waiting.append(start())
                running += 1
            if not waiting:
                return
            if not waiting[0].done:
                with suppress(TaskTimeout):
                    waiting[0].wait(POLL_SECONDS)
                continue
            yield _outcome(waiting.popleft(), return_exceptions)
    except KeyboardInterrupt:
        running_ones = [task for task in waiting if not task.done]
        waiting.clear()
        on_interrupt(running_ones)
        raise
    finally:
        for task in waiting:
            if not task.done:
                with suppress(FlowError):
                    task.cancel()


def _outcome(task: Running[Any], return_exceptions: bool) -> Any:
    if not return_exceptions:
        return task.result()
    try:
        return task.result()
    except Exception as error:
        return error
