"""Moves a task from one of its places to the next (`supervise/failover.py` says which, and in which steps)."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from flowlite.provider import Provider
from flowlite.state import clock
from flowlite.state.store import FullPlace, InstanceRecord, Store, TaskRecord
from flowlite.supervise import failover
from flowlite.supervise.attempt import unreachable_nodes
from flowlite.supervise.failover import Kind, NextPlace, PlaceFailed
from flowlite.supervise.process.journal import Journal
from flowlite.supervise.provision import LaunchRefused, Provisioner
from flowlite.supervise.queue.current_queue import Queue
from flowlite.supervise.record import wording
from flowlite.supervise.record.lifecycle import TaskEvent

# The other tasks of the FLOW_HOME may change meanwhile which place is asked next.
_LONGEST_SLEEP = 30.0
# How often the queue is read of a place that was left because it was not the task's turn.
_LOOK_EVERY = 1.0


class NoPlaceLeft(LaunchRefused):
    """All places of a task have refused, or it has waited for room for too long."""


class PlaceSearch:
    """The search of one task for a place.

    Attributes:
        has_moved: Whether the task has another place now, for which a supervisor of its own goes on.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        journal: Journal,
        provider: Provider,
        provisioner: Provisioner,
        max_wait_seconds: float | None,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._store = store
        self._home = home
        self._journal = journal
        self._provider = provider
        self._provisioner = provisioner
        self._max_wait = max_wait_seconds
        self._sleep = sleep
        self.has_moved = False

    async def may_launch(self) -> bool:
        """Advances the search by one step. Returns whether the present place is to be asked now.

        Raises:
            NoPlaceLeft: No place may be asked any more.
            ProviderError: The place that is being left may still have something. The call should be repeated.
        """
        record = self._journal.record
        if failover.is_leaving(record):
            await self._leave()
            return False
        if self._provisioner.is_launching():
            return True
        if record.roster:
            if await self._provisioner.usable(record.roster):
                return True
            # Nothing is lost by going elsewhere, perhaps to a better place than the last one.
            await self._leave()
            return False
        found = self._next()
        if found.candidate != record.candidate:
            self._move(found, ())
            return False
        return await self._wait_for(found)

    def note_failure(self, failed: PlaceFailed) -> None:
        """Records that the present place failed, from which moment on it is being left."""
        record, now = self._journal.record, clock.now()
        plan, full = failover.plan_of(record, record.candidate), None
        why = self._journal.readable(str(failed))
        if failed.kind in (Kind.FULL, Kind.QUOTA):
            full = FullPlace(failover.place_of(plan), failed.nodes, record.id, now)
        self._journal.step(
            TaskEvent.WAIT,
            why=f"leaving {plan.place}: {why}",
            updates=True,
            tried=failover.with_failure(record, failed, why, now),
            full=full,
        )

    async def _leave(self) -> None:
        ended = await self._provisioner.end_all()
        unreachable_nodes.begin_if_left(self._home, self._provider)
        self._move(self._next(), ended)

    def _next(self) -> NextPlace:
        record, now = self._journal.record, clock.now()
        full = self._store.full_places()
        found = failover.next_place(record, full, now, self._free(record))
        if found is None:
            text = f"none of {len(record.candidates)} places has nodes for it: {failover.report(record)}"
            raise NoPlaceLeft(text, again=True)
        if failover.all_were_tried(record) and self._wait_ends() <= now:
            text = f"max_wait_hours: no room within {wording.duration(self._max_wait or 0.0)}"
            raise NoPlaceLeft(f"{text}: {failover.report(record)}")
        return found

    def _free(self, record: TaskRecord) -> frozenset[int]:
        """The places that were left because others were before the task, and at which it is its turn now."""
        left = failover.left_for_turn(record)
        if not left:
            return frozenset()
        queue = Queue.read(self._store)
        slots = {index: failover.plan_of(record, index).slots for index in left}
        return frozenset(each for each in left if queue.may_start(record.id, slots[each]))

    def _wait_ends(self) -> float:
        """The Unix time until which the task may wait for room."""
        began = failover.began(self._journal.record)
        return math.inf if self._max_wait is None or not began else began + self._max_wait

    def _move(self, to: NextPlace, ended: Sequence[InstanceRecord]) -> None:
        """Makes another place the present one, now that the last one has nothing."""
        record = self._journal.record
        intents = self._store.intents(record.id)
        self._journal.step(
            TaskEvent.RETRY,
            why=f"asking {to.plan.place}",
            updates=True,
            candidate=to.candidate,
            provider=to.plan.provider,
            plan=to.plan.to_json(),
            roster=[],
            tried=failover.with_place_left(record, clock.now()),
            instances=ended,
            settled={i.token: "undone" for i in intents if i.state == "open"},
        )
        self.has_moved = True

    async def _wait_for(self, found: NextPlace) -> bool:
        """Waits for the time at which the present place may be asked. Returns whether it has come."""
        record, now = self._journal.record, clock.now()
        seconds = found.at - now
        if seconds <= 0:
            return True
        at = time.strftime("%H:%M:%S", time.localtime(found.at))
        self._journal.waiting(
            f"none of {len(record.candidates)} places has room; next try at {at}, {found.plan.place}"
        )
        if (left := self._wait_ends() - now) > 0:
            seconds = min(seconds, left)
        longest = _LOOK_EVERY if failover.left_for_turn(record) else _LONGEST_SLEEP
        await self._sleep(min(seconds, longest))
        return False
