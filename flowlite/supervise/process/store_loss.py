"""Ends the nodes of a task whose store is lost for good, or cannot be written after the task was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from flowlite.errors import FlowError
from flowlite.provider import Instance, Provider
from flowlite.state import clock
from flowlite.supervise.record.log import say
from flowlite.supervise.threads import Threads

_END_SECONDS = 600.0
_LONGEST_PAUSE = 30.0


async def end_nodes(
    provider: Provider,
    threads: Threads,
    listed: Callable[[], list[Instance]],
    known: Iterable[Instance],
) -> bool:
    """Terminates the task's instances until the provider lists none.

    After 10 minutes, logs the ids of those left and returns False.
    """
    ending = {instance.id: instance for instance in known}
    deadline, pause = clock.monotonic() + _END_SECONDS, 0.5
    while True:
        left = []
        try:
            ending |= {instance.id: instance for instance in await threads.run(listed)}
            if ending:
                await threads.run(provider.terminate, list(ending.values()))
            left = await threads.run(listed)
            if not left:
                return True
        except (FlowError, OSError) as error:
            say(f"the nodes cannot be ended, trying again: {error}")
        if clock.monotonic() > deadline:
            names = ", ".join(instance.id for instance in left) or "what it has"
            say(f"left to their own deadline: {names}")
            return False
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
