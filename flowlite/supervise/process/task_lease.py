"""The supervisor's hold on its task: renews the lease, and watches the store for a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from flowlite.errors import LeaseLost, StoreDamaged, StoreError
from flowlite.state import clock
from flowlite.state.store import Lease, Store
from flowlite.supervise.record.log import say

LEASE_SECONDS = 30.0
_RENEW_EVERY = 10.0
_LOOK_EVERY = 0.05
_SAY_EVERY = 10.0
# How long the user has to restore the store, and how long if the task's directory was removed too, which makes a
# restore unlikely.
DAMAGED_SECONDS = 300.0
REMOVED_SECONDS = 30.0


class Patience:
    """Decides how long a damaged store is waited for.

    A full disk or a locked file recovers by itself and is waited for. A file that is damaged or removed comes back
    only through `flow store restore`, which ends supervisors itself. A supervisor that still runs some minutes later
    must end its nodes itself.
    """

    def __init__(self, task_directory: Path) -> None:
        self._directory = task_directory
        self._since: float | None = None
        self._noted = 0.0

    def well(self) -> None:
        """Notes that the store can be used."""
        self._since = None

    def is_over(self) -> bool:
        """Notes that the store cannot be used. Returns whether that has lasted too long."""
        now = clock.monotonic()
        # It is noted every few seconds while it lasts, but not that it is over while a gang runs for days.
        if self._since is None or now - self._noted > 2 * DAMAGED_SECONDS:
            self._since = now
        self._noted = now
        limit = DAMAGED_SECONDS if self._directory.exists() else REMOVED_SECONDS
        return now - self._since > limit


class TaskLease:
    """The lease of one task, as its supervisor holds it."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._until = clock.now() + LEASE_SECONDS

    async def keep(self) -> None:
        """Renews the lease until cancelled. Raises LeaseLost."""
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            self._renew()

    def make_sure(self) -> None:
        """Renews the lease if it has expired.

        Called before a write outside the store, which cannot check the lease: the process may have been suspended for
        hours.
        """
        if clock.now() > self._until:
            self._renew()

    def renew(self) -> None:
        """Renews the lease. Raises LeaseLost, or StoreError if the store cannot be written."""
        self._store.renew_lease(self._lease, LEASE_SECONDS)
        self._until = clock.now() + LEASE_SECONDS

    async def watch(
        self,
        cancel: Callable[[], None],
        is_waiting: Callable[[], bool],
        lose_store: Callable[[], None],
        patience: Patience,
        cancel_file: Path,
    ) -> None:
        """Watches for a cancellation, another supervisor, and the loss of the store, until cancelled.

        Args:
            cancel: Called when a cancellation was requested.
            is_waiting: Whether the task waits for capacity. The store is then read less often.
            lose_store: Called when the store is lost for good.
            patience: Decides when the store is lost for good.
            cancel_file: Exists if a cancellation was requested that the store could not record.

        Raises:
            LeaseLost: Another supervisor has taken over.
        """
        version, said_at = -1, 0.0
        while True:
            if cancel_file.exists():
                cancel()
            try:
                latest = self._store.version()
                if latest != version:
                    self._store.make_sure_of_tables()
                    if self._store.cancel_requested(self._lease):
                        cancel()
                version = latest
                patience.well()
            except LeaseLost:
                raise
            except StoreError as error:
                if clock.monotonic() - said_at > _SAY_EVERY:
                    said_at = clock.monotonic()
                    say(f"the store cannot be read: {error}")
                if isinstance(error, StoreDamaged) and patience.is_over():
                    lose_store()
            # Hundreds of supervisors may wait for capacity on one machine, so each reads the store less often.
            await asyncio.sleep(_LOOK_EVERY * (4 if is_waiting() else 1))

    def _renew(self) -> None:
        try:
            self.renew()
        except LeaseLost:
            raise
        except StoreError as error:
            say(f"the lease cannot be renewed: {error}")
