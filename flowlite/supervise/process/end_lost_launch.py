"""Ends what a launch that has lost instances may still cost, while the gang is being stopped and collected.

A launch may be more than its instances. A bid at Mithril that has lost its machines wins others, which nobody asked
for, and what is left of it cannot be used again. So the listing is asked from the moment at which a node does not
answer, and not only once the gang has been collected:

    of the gang the provider lists          what is charged beside it    the instances themselves
    all, or some, as running                ended at once                kept for the next attempt
    some, as ending with what is gone       ended with them              kept while they stop and are collected
    none                                    ended at once                are gone: nothing can be collected from them
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from flowlite.errors import LeaseLost, ProviderError, StoreError
from flowlite.supervise.record.log import say

if TYPE_CHECKING:
    from flowlite.supervise.provision import Provisioner

COLLECT_SECONDS = 30.0
"""Instances that go with those that are lost are kept so long for their logs, beyond the time they take to stop."""
_EVERY = 2.0


async def end_remains(
    provisioner: Provisioner,
    roster: Collection[str],
    in_doubt: Callable[[], bool],
    seconds: float,
) -> None:
    """Looks until it is cancelled. Raises LeaseLost.

    Args:
        roster: Instances of the gang.
        in_doubt: Whether one of them does not answer; only then the provider is asked.
        seconds: How long instances that go with those that are lost are kept, from when that is known.
    """
    until: float | None = None
    while True:
        await asyncio.sleep(_EVERY)
        if until is None and not in_doubt():
            continue
        try:
            over = until is not None and time.monotonic() >= until
            if await provisioner.end_beside(roster, doomed_too=over) and until is None:
                until = time.monotonic() + seconds
        except LeaseLost:
            raise
        except (ProviderError, StoreError, OSError) as error:
            say(f"what lost instances leave behind cannot be ended yet: {error}")
