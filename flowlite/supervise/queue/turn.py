"""A supervisor's wait for the turn of its task."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from flowlite.errors import NotFound
from flowlite.state import clock
from flowlite.state.store import Store
from flowlite.supervise.queue.backfill import Place
from flowlite.supervise.queue.current_queue import MOST_NAMED, Queue, in_words
from flowlite.supervise.queue.waking import wake_due
from flowlite.supervise.record.lifecycle import State

# How often the store is asked whether something was written, and how often the queue is read if nothing was.
_LOOK_EVERY, _READ_EVERY = 0.1, 1.0
# A pause is so many times as long as the processor time of the last reading, which is 60 ms for 2,000 tasks. Several
# supervisors are awake, and something is written all the time while short tasks run.
_READ_SHARE = 10


class Turn:
    """The turn of one task.

    Attributes:
        sleep: Sleeps, or returns early if the task is cancelled.
        tell_waiting: Called with what the task waits for.
        given_up: Whether the task was cancelled.
    """

    def __init__(
        self,
        store: Store,
        task_id: str,
        sleep: Callable[[float], Awaitable[None]],
        tell_waiting: Callable[[str], None],
        given_up: Callable[[], bool],
    ) -> None:
        self._store = store
        self._task_id = task_id
        self.sleep = sleep
        self.tell_waiting = tell_waiting
        self.given_up = given_up
        self._woke_at = -math.inf

    async def to_launch(self, until: float = math.inf) -> bool:
        """Waits until the task may launch.

        Returns:
            False if it was cancelled meanwhile, or it was not its turn by that Unix time. Raises StoreError.
        """
        return await self._until(self._refusal, until)

    def nodes_to_add(self) -> int | None:
        """How many more nodes a task that has what it needs may take now; None if no queue limits it."""
        queue = Queue.read(self._store, growing=self._task_id)
        task = queue.tasks.get(self._task_id)
        if task is None or not any(kind.get("most") for kind in task.slots):
            return None
        for place in queue.places(all_times=False):
            if place.task_id == self._task_id:
                return place.nodes or 0
        return None

    async def to_begin(self, after: Sequence[str]) -> str | None:
        """Waits for the tasks that must have completed before.

        Returns:
            Why the task must not begin, since one of them did not complete; "" if it may begin, None if it was
            cancelled. Raises StoreError.
        """
        while True:
            if problem := self._not_completed(after):
                return problem
            if not await self._until(lambda: self._unfinished(after)):
                return None
            if not self._unfinished(after):
                return self._not_completed(after)

    async def _until(self, refusal: Callable[[], str], until: float = math.inf) -> bool:
        version, read_at, pause = -1, 0.0, _LOOK_EVERY
        while not self.given_up():
            latest = self._store.version()
            if latest != version or clock.monotonic() - read_at > _READ_EVERY:
                version, read_at = latest, clock.monotonic()
                began = time.thread_time()
                why = refusal()
                spent = time.thread_time() - began
                pause = max(_LOOK_EVERY, min(_READ_EVERY, _READ_SHARE * spent))
                if not why:
                    return True
                self.tell_waiting(why)
            if clock.now() >= until:
                return False
            await self.sleep(min(pause, max(_LOOK_EVERY, until - clock.now())))
            pause = _LOOK_EVERY
        return False

    def _refusal(self) -> str:
        queue = Queue.read(self._store)
        for before, place in enumerate(queue.places(all_times=False)):
            if place.task_id == self._task_id:
                if place.may_start:
                    # The launch wakes those that come next. Nothing may hold it up.
                    return ""
                self._wake_next(queue)
                return _sentence(queue, place, before)
        return ""

    def _wake_next(self, queue: Queue) -> None:
        """Wakes those that come next, in case the process that should have done so was killed.

        That looks at each task of the queue, so it is not done at each reading.
        """
        if clock.monotonic() - self._woke_at >= _READ_EVERY:
            self._woke_at = clock.monotonic()
            wake_due(self._store, queue)

    def _unfinished(self, after: Sequence[str]) -> str:
        there = [task for task in self._store.unfinished() if task.id in after]
        return f"begins after {in_words(there)}" if there and not self._not_completed(after) else ""

    def _not_completed(self, after: Sequence[str]) -> str:
        for name in after:
            try:
                record = self._store.get_task(name)
            except NotFound:
                return f"not started: it was to begin after {name}, which was removed"
            if record.final and record.state != State.COMPLETED:
                how = "was cancelled" if record.state == State.CANCELLED else "failed"
                why = f": {record.reason}" if record.reason else ""
                return (
                    f"not started: it was to begin after {record.name} ({name}), which {how}{why}"
                )
        return ""


def _sentence(queue: Queue, place: Place, before: int) -> str:
    task = queue.tasks[place.task_id]
    count = max(int(kind["count"]) for kind in task.slots)
    places = "a place" if count == 1 else f"{count} places"
    users = queue.users_of(task)
    more = f" and {len(users) - MOST_NAMED} more" if len(users) > MOST_NAMED else ""
    used = f", in use by {in_words(users)}{more}" if users else ""
    ahead = f"{before} before it" if before else "it is next"
    when = ""
    if place.starts_at is not None:
        when = f"; starts by {datetime.fromtimestamp(place.starts_at).astimezone():%H:%M}"
    return f"waiting for {places} ({task.instance_type}{used}): {ahead}{when}"
