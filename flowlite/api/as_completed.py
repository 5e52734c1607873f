"""`as_completed`: tasks in the order in which they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from flowlite.api.async_wait import show_news
from flowlite.display import waiting
from flowlite.display.waiting import Pauses
from flowlite.errors import ConfigError, TaskTimeout

if TYPE_CHECKING:
    from flowlite.api.task import Task

R = TypeVar("R")


class AsCompleted(Generic[R]):
    """Tasks in the order in which they end. Iterate with `for`, or with `async for` in an event loop."""

    def __init__(self, tasks: Iterable[Task[R]], timeout: float | None = None) -> None:
        self._tasks = list(tasks)
        for each in self._tasks:
            if not hasattr(each, "wait_async"):
                raise ConfigError(
                    f"as_completed takes tasks, such as those of `spawn`, not {each!r}"
                )
        self._timeout = waiting.checked_timeout(timeout)

    def __iter__(self) -> Iterator[Task[R]]:
        left = list(self._tasks)
        shown = {task.id: waiting.display_in_program(task, None) for task in left}
        for display in shown.values():
            if display is not None:
                display.announce()
        deadline = self._deadline()
        pauses = Pauses()
        try:
            while left:
                began = time.monotonic()
                looks = [(task, *show_news(task, shown[task.id])) for task in left]
                spent = time.monotonic() - began
                ended = [task for task, is_final, _ in looks if is_final]
                for task in ended:
                    left.remove(task)
                    waiting.leave(task, shown[task.id], tell_end=True)
                    yield task
                if ended:
                    pauses.restart()
                    continue
                lasts = deadline - time.monotonic()
                if lasts <= 0:
                    raise self._late(left)
                if any(news for _, _, news in looks):
                    pauses.restart()
                time.sleep(min(pauses.next(spent), lasts))
        finally:
            for display in shown.values():
                if display is not None:
                    display.pause()

    async def __aiter__(self) -> AsyncIterator[Task[R]]:
        deadline = self._deadline()
        waits = {asyncio.ensure_future(task.wait_async()): task for task in self._tasks}
        try:
            while waits:
                left = None if self._timeout is None else max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait(
                    waits, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    raise self._late(list(waits.values()))
                for each in done:
                    task = waits.pop(each)
                    each.result()
                    yield task
        finally:
            for each in waits:
                each.cancel()

    def _deadline(self) -> float:
        return float("inf") if self._timeout is None else time.monotonic() + self._timeout

    def _late(self, left: list[Task[R]]) -> TaskTimeout:
        named = ", ".join(f"{task.name} ({task.id})" for task in left[:5])
        more = ", …" if len(left) > 5 else ""
        return TaskTimeout(
            f"{len(left)} of {len(self._tasks)} tasks have not ended after {self._timeout:g} s, and continue: "
            f"{named}{more}"
        )


def as_completed(tasks: Iterable[Task[R]], timeout: float | None = None) -> AsCompleted[R]:
    """Yields tasks as they complete, fail or are cancelled; with `for`, or with `async for` in an event loop.

    Args:
        tasks: Tasks of `spawn` or `Flow.run`.
        timeout: Seconds to wait at most for all of them; None for no limit.

    Raises:
        TaskTimeout: Some tasks have not ended in time. They continue.
    """
    return AsCompleted(tasks, timeout)
