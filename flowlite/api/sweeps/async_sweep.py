"""Takes the results of a sweep from an event loop, without a thread that waits for the tasks."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from flowlite.api import import_guard
from flowlite.api.sweeps.sweep import PAUSE, POLL_SECONDS

T = TypeVar("T")


class AsyncResults(AsyncIterator[Any]):
    """The results of a sweep, for `async for`. Warns if nobody ever asks for one, since no task is started then."""

    def __init__(self, steps: Generator[Any, None, None], what: str) -> None:
        """
        Args:
            steps: What starts the tasks and yields their results; `PAUSE` where there is none yet.
            what: The call, such as "train.map.aio(…)", for the warning.
        """
        self._results = _results_of(steps)
        self._what = what
        self._begun = False
        self._made_at = import_guard.users_place()

    async def __anext__(self) -> Any:
        self._begun = True
        return await anext(self._results)

    async def aclose(self) -> None:
        """Cancels the tasks that still run."""
        self._begun = True
        await self._results.aclose()

    def __await__(self) -> Any:
        self._begun = True
        raise TypeError(
            f"{self._what} gives its results one after the other; write: "
            f"async for result in {self._what}, or [result async for result in {self._what}]"
        )

    def __iter__(self) -> Any:
        self._begun = True
        raise TypeError(f"{self._what} is for event loops; write: async for result in {self._what}")

    def __del__(self) -> None:
        if not self._begun:
            text = (
                f"{self._what} was never iterated, so no task was started; "
                f"write: async for result in {self._what}"
            )
            warnings.warn_explicit(text, RuntimeWarning, *self._made_at)


async def _results_of(steps: Generator[Any, None, None]) -> AsyncGenerator[Any, None]:
    """Each step, a submission or a look at the tasks, is made in a thread, since it reads and writes files.

    A cancelled `await` takes effect after the step that is under way; then the tasks that still run are cancelled.
    """
    end = object()
    try:
        while (step := await _whole(lambda: next(steps, end))) is not end:
            if step is PAUSE:
                await asyncio.sleep(POLL_SECONDS)
            else:
                yield step
    finally:
        await _whole(steps.close)


async def _whole(work: Callable[[], T]) -> T:
    """Runs something in a thread. If the await is cancelled, waits for the end of it first."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
