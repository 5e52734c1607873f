"""Being the one who leads a task: its lease is kept, and what others write about it (a cancellation) is learned of."""

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
# Time for somebody to restore the store; where the task's directory was removed, nobody will.
DAMAGED_SECONDS = 300.0
REMOVED_SECONDS = 30.0


class Patience:
    """How long a store has been damaged.

    A full disk or a locked file passes, and is waited for. A file that is damaged or removed comes back only by
    `flow store restore`, which ends supervisors itself; so one that still runs some minutes later is on its own.
    """

    def __init__(self, task_directory: Path) -> None:
        self._directory = task_directory
        self._since: float | None = None

    def well(self) -> None:
        """The store can be used."""
        self._since = None

    def is_over(self) -> bool:
        """Says that it cannot, and whether it has been so for long enough."""
        now = clock.monotonic()
        self._since = now if self._since is None else self._since
        limit = DAMAGED_SECONDS if self._directory.exists() else REMOVED_SECONDS
        return now - self._since > limit


class TaskLease:
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

    async def watch(
        self,
        cancel: Callable[[], None],
        is_waiting: Callable[[], bool],
        lose_store: Callable[[], None],
        patience: Patience,
    ) -> None:
        """Learns of a cancellation, of another supervisor, and of a store that is gone, for ever. Raises LeaseLost.

        Args:
            cancel: Called when somebody has asked for the end.
            is_waiting: Whether it need not look so often.
            lose_store: Called when the store is gone for good.
            patience: Says when it is.
        """
        version, said_at = -1, 0.0
        while True:
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
