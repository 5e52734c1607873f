"""Waits in the event loop for an event, or for something else before it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Waits until an event is set, at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def wait_until(
    event: asyncio.Event, *others: asyncio.Future[Any], seconds: float | None = None
) -> None:
    """Waits until an event is set or one of the others is done, which go on; at most so many seconds."""
    is_set = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({is_set, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_set.cancel()
