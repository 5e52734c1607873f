"""Being the one who leads a task: its lease is kept, and what others write about it (a cancellation) is learned of."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from flowlite import clock, masking
from flowlite.errors import LeaseLost, StoreError
from flowlite.store import Lease, Store

LEASE_SECONDS = 30.0
_RENEW_EVERY = 10.0
_LOOK_EVERY = 0.05


class Leading:
    """The lease of one task, as its supervisor holds it."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._until = clock.now() + LEASE_SECONDS

    async def keep(self) -> None:
        """Renews the lease, for ever. Raises LeaseLost."""
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            self._renew()

    def make_sure(self) -> None:
        """Before anything is written outside the store, which checks by itself: a process may have slept for hours."""
        if clock.now() > self._until:
            self._renew()

    async def watch(self, cancel: Callable[[], None], is_waiting: Callable[[], bool]) -> None:
        """Learns of a cancellation, and of another supervisor, for ever. Raises LeaseLost."""
        version = -1
        while True:
            try:
                latest = self._store.version()
                if latest != version and self._store.cancel_requested(self._lease):
                    cancel()
                version = latest
            except LeaseLost:
                raise
            except StoreError as error:
                say(f"the store cannot be read: {error}")
            # Hundreds may wait for capacity on one machine; they need not look so often.
            await asyncio.sleep(_LOOK_EVERY * (4 if is_waiting() else 1))

    def _renew(self) -> None:
        try:
            self._store.renew_lease(self._lease, LEASE_SECONDS)
            self._until = clock.now() + LEASE_SECONDS
        except LeaseLost:
            raise
        except StoreError as error:
            say(f"the lease cannot be renewed: {error}")


def say(text: str) -> None:
    """A line in the supervisor's log."""
    said = masking.cleaned(text.rstrip())
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}\n")
    sys.stderr.flush()
