"""Ends what is still charged for a launch that has lost instances, while the gang is being stopped and collected.

A launch may be more than its instances. A bid at Mithril that has lost its machines wins new ones, which the task
cannot use, and its remaining instances cannot be used again. The provider is therefore asked for its listing from the
moment a node stops answering, and not only after the gang has been collected:

    of the gang the provider lists          what is charged beside it    the instances themselves
    all or some as running                  ended at once                kept for the next attempt
    some as ending with the lost ones       ended with them              kept while they stop and are collected
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
"""How long instances that end with the lost ones are kept for their logs, beyond the time they take to stop."""
_EVERY = 2.0


async def end_remains(
    provisioner: Provisioner,
    roster: Collection[str],
    in_doubt: Callable[[], bool],
    seconds: float,
) -> None:
    """Polls the listing until cancelled, and ends what the lost instances leave behind.

    Args:
        in_doubt: Whether one of them does not answer. The provider is asked only then.
        seconds: How long instances that end with the lost ones are kept, from the moment that is known.

    Raises:
        LeaseLost: Another supervisor has taken over.
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
