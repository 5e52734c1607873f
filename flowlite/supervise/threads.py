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
    """A thread pool large enough to reach a gang of hundreds in a few rounds. Threads are created on demand."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=_THREADS)

    def run(self, function: Callable[..., Value], *arguments: Any) -> Awaitable[Value]:
        """Calls a function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Accepts no more work. Does not wait for calls in progress."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def each(self, items: Iterable[Item], do: Callable[[Item], Value]) -> list[Value]:
        """Calls a function for every item concurrently and returns the results in order."""
        return await asyncio.gather(*(self.run(do, item) for item in items))
