"""Threads for what blocks: calls to providers and connections, for one node or for all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

_THREADS = 64


class Threads:
    """So many threads that a gang of hundreds is reached in a few rounds; each is made when it is first needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=_THREADS)

    def run(self, function: Callable[..., Value], *arguments: Any) -> Awaitable[Value]:
        """Calls a function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Takes no more work. What is being done is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def each(self, items: Iterable[Item], do: Callable[[Item], Value]) -> list[Value]:
        """Calls a function for every item, all at once; gives what it gave, in order."""
        return await asyncio.gather(*(self.run(do, item) for item in items))
