"""What the provider says of the nodes of a gang that broke, which may be more than the gang itself could know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from flowlite.node import messages
from flowlite.provider import Instance
from flowlite.supervise.ends import End, taken_away

# As long as the provider is still ending nodes it may not say why; Slurm gives processes 30 s and more to end.
_DECIDES_SECONDS = 60.0
_EVERY = 0.5
_ENDED, _ENDING = "ended", "ending"


async def as_told(end: End, ask: Callable[[], Awaitable[Sequence[Instance]]], waits: bool) -> End:
    """The end in the light of what became of the nodes.

    Args:
        ask: Gives what is said of them now.
        waits: Whether to wait until nodes that are being ended have ended, which tells why.
    """
    until = time.monotonic() + _DECIDES_SECONDS
    found = await ask()
    while waits and time.monotonic() < until and any(_undecided(each) for each in found):
        await asyncio.sleep(_EVERY)
        found = await ask()
    gone = [each for each in found if each.preempted]
    taken = sorted(each.id for each in gone)
    over = sorted((each for each in found if each.state == _ENDED), key=lambda each: each.id)
    if taken and waits and gone[0].why:
        return replace(
            end,
            outcome=messages.PREEMPTED,
            reason=f"{gone[0].why}: {end.reason}",
            replace=tuple({*end.replace, *taken}),
        )
    if taken:
        return taken_away(end, taken)
    if waits and over and over[0].why:
        outcome = messages.LOST if end.outcome == messages.PREEMPTED else end.outcome
        ids = tuple({*end.replace, *(each.id for each in over)})
        return replace(end, outcome=outcome, reason=f"{over[0].why}: {end.reason}", replace=ids)
    return end


def _undecided(instance: Instance) -> bool:
    return instance.state == _ENDING and not instance.preempted
