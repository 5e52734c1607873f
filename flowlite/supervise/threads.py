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
        return asyncio.get_running_loop().run_in_executor(self._calls, function, *arguments)

    def look(self, function: Callable[..., Value], *arguments: Any) -> Awaitable[Value]:
        """Calls a function that ends soon in a thread. It does not wait for those of `run`."""
        return asyncio.get_running_loop().run_in_executor(self._looks, function, *arguments)

    def close(self) -> None:
        """Accepts no more work. Does not wait for calls in progress."""
        for pool in (self._calls, self._looks):
            pool.shutdown(wait=False, cancel_futures=True)

    async def each(self, items: Iterable[Item], do: Callable[[Item], Value]) -> list[Value]:
        """Calls a function for every item concurrently and returns the results in order."""
        return await asyncio.gather(*(self.run(do, item) for item in items))
