"""Which sleeping supervisors are woken: those whose turn it is, and a few that come next.

A supervisor that is awake has its modules imported, so that a host that becomes free is taken at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from flowlite.state.store import Store, UnfinishedTask
from flowlite.supervise.queue import asleep
from flowlite.supervise.queue.current_queue import Queue, in_words
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.lifecycle import State

AWAKE_AHEAD = 8
"""How many tasks of a queue that cannot start yet have a supervisor that is awake.

On a machine with two busy cores, one takes a second to wake up, and four hosts take up to five small tasks a second.
With four awake, a host was idle for up to 1.5 s (`python -m benchmarks queue`). Each takes some 20 MB.
"""
# How many supervisors are awake at a time only to record that their task was cancelled.
_CANCELLING = 8
_SEE_PLACE = "`flow queue` shows its place"
# The tasks whose supervisors this process has woken to record a cancellation, until they have ended, by their store.
_woken_to_end: dict[Path, set[str]] = {}


def wake_due(store: Store, queue: Queue | None = None) -> None:
    """Wakes the supervisors that should be awake. Raises StoreError."""
    found = queue or Queue.read(store)
    for task_id in _due(store, found):
        wake(store, found, task_id)


def wake(store: Store, queue: Queue, task_id: str) -> None:
    """Wakes the supervisor of one task, if it is asleep."""
    if queue.is_asleep(task_id):
        _wake(store, task_id)


def wake_cancelled(store: Store, task_id: str) -> None:
    """Wakes the supervisor of a task whose cancellation was just recorded, if it is asleep, without reading the queue.

    Beyond a few that are awake for that, it is left to these: each wakes those that come next when it ends.
    """
    if not asleep.is_asleep(store.path.parent, task_id):
        return
    woken = _woken_to_end.setdefault(store.path, set())
    woken -= {each for each in woken if not _is_ending(store, each)}
    if len(woken) < _CANCELLING:
        woken.add(task_id)
        _wake(store, task_id)


def _is_ending(store: Store, task_id: str) -> bool:
    """Whether a task has not ended, and has a supervisor."""
    unfinished = bool(store.unfinished_leases(task_id))
    return unfinished and process_identity.has_supervisor(store.path.parent, task_id)


def _wake(store: Store, task_id: str) -> None:
    # To have been asleep is a sign of life, without which the task would wait for `flow resume`.
    store.count_as_led(task_id)
    asleep.wake(store.path.parent, task_id)


def why_asleep(store: Store, starting: Collection[str]) -> dict[str, str]:
    """Why the supervisors that are about to be started for tasks can be asleep at first, by task.

    Tasks whose supervisors cannot sleep are left out. Nobody changes a text before its supervisor is woken.
    """
    if not starting:
        return {}
    queue = Queue.read(store)
    due = set(_due(store, queue, starting))
    return {
        name: _why_asleep(queue, queue.tasks[name])
        for name in starting
        if name in queue.tasks and name not in due
    }


def _why_asleep(queue: Queue, task: UnfinishedTask) -> str:
    before = [queue.tasks[name] for name in task.after if name in queue.tasks]
    if not before:
        return f"waits for its turn; {_SEE_PLACE}"
    turn = f", in its turn; {_SEE_PLACE}" if task.slots else ""
    return f"begins after {in_words(before)}{turn}"


def _due(store: Store, queue: Queue, starting: Collection[str] = ()) -> list[str]:
    """Returns the tasks whose supervisors should be awake.

    Args:
        starting: Tasks that have no supervisor yet, and are about to get one.
    """
    free = [
        task.id
        for task in queue.tasks.values()
        if task.state == State.PENDING
        and not task.cancel_requested
        and not task.slots
        and not any(name in queue.tasks for name in task.after)
    ]
    ahead: Counter[object] = Counter()
    next_ones = []
    for place in queue.places(
        all_times=False, counts=lambda task_id: task_id in starting or queue.is_led(task_id)
    ):
        kind = queue.tasks[place.task_id].slots[0]["slots"]
        ahead[kind] += not place.may_start
        if place.may_start or ahead[kind] <= AWAKE_AHEAD:
            next_ones.append(place.task_id)
    return [*_cancelled(queue), *_hopeless(store, queue), *free, *next_ones]


def _hopeless(store: Store, queue: Queue) -> list[str]:
    """Returns the tasks that wait for others, although one that they begin after has not completed."""
    pending = [
        task
        for task in queue.tasks.values()
        if task.state == State.PENDING and not task.cancel_requested
    ]
    waiting = [task for task in pending if any(name in queue.tasks for name in task.after)]
    if not any(name not in queue.tasks for task in waiting for name in task.after):
        return []
    # One that was removed is not there any more.
    good = store.completed({name for task in waiting for name in task.after}) | queue.tasks.keys()
    return [task.id for task in waiting if not good.issuperset(task.after)]


def _cancelled(queue: Queue) -> list[str]:
    """Returns some of the tasks that were cancelled before they began."""
    pending = [
        task.id
        for task in queue.tasks.values()
        if task.state == State.PENDING and task.cancel_requested and queue.is_led(task.id)
    ]
    sleeping = [name for name in pending if queue.is_asleep(name)]
    return sleeping[: max(0, _CANCELLING - (len(pending) - len(sleeping)))]
