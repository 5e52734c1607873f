"""Threads for blocking calls to providers and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

_THREADS = 64


class Threads:
    """Two thread pools, each large enough to reach a gang of hundreds in a few rounds. Threads are created on demand.

    A call may take long, such as sending files to a node. Looks, such as probes, have their own threads, since whether
    a node answers must be known in time.
    """

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(max_workers=_THREADS)
        self._looks = ThreadPoolExecutor(max_workers=_THREADS)

    def run(self, function: Callable[..., Value], *arguments: Any) -> Awaitable[Value]:
        """Calls a function in a thread."""
        return _begin(self._calls, function, *arguments)

    def look(self, function: Callable[..., Value], *arguments: Any) -> Awaitable[Value]:
        """Calls a function that ends soon in a thread. It does not wait for those of `run`."""
        return _begin(self._looks, function, *arguments)

    def close(self) -> None:
        """Accepts no more work. Does not wait for calls in progress."""
        for pool in (self._calls, self._looks):
            pool.shutdown(wait=False, cancel_futures=True)

    async def each(self, items: Iterable[Item], do: Callable[[Item], Value]) -> list[Value]:
        """Calls a function for every item concurrently and returns the results in order."""
        return await asyncio.gather(*(self.run(do, item) for item in items))


def _begin(
    pool: ThreadPoolExecutor, function: Callable[..., Value], *arguments: Any
) -> Awaitable[Value]:
    call = asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
    # Nobody may wait for it any more when it fails, such as a call on a node that is given up meanwhile. asyncio would
    # print the traceback of an error that nobody retrieves.
    call.add_done_callback(lambda done: done.cancelled() or done.exception())
    return call
