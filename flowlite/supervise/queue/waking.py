"""Which sleeping supervisors are woken: those whose turn it is, and a few that come next.

A supervisor that is awake has its modules imported, so that a host that becomes free is taken at once.
"""

from __future__ import annotations

from collections import Counter

from flowlite.state.store import Store
from flowlite.supervise.queue import asleep
from flowlite.supervise.queue.current_queue import Queue, in_words
from flowlite.supervise.record.lifecycle import State

AWAKE_AHEAD = 8
"""How many tasks of a queue that cannot start yet have a supervisor that is awake.

On a machine with two busy cores, one takes a second to wake up, and four hosts take up to five small tasks a second.
With four awake, a host was idle for up to 1.5 s (`python -m benchmarks queue`). Each takes some 20 MB.
"""
# How many supervisors are awake at a time only to record that their task was cancelled.
_CANCELLING = 8
_SEE_PLACE = "`flow queue` shows its place"


def wake_due(store: Store, queue: Queue | None = None) -> None:
    """Wakes the supervisors that should be awake. Raises StoreError."""
    found = queue or Queue.read(store)
    for task_id in _due(store, found):
        wake(store, found, task_id)


def wake(store: Store, queue: Queue, task_id: str) -> None:
    """Wakes the supervisor of one task, if it is asleep."""
    if queue.is_asleep(task_id):
        # To have been asleep is a sign of life, without which the task would wait for `flow resume`.
        store.count_as_led(task_id)
        asleep.wake(queue.home, task_id)


def why_asleep(store: Store, task_id: str) -> str:
    """Why the supervisor that is about to be started for a task can be asleep at first; "" if it cannot.

    The sentence stays true until the supervisor is woken: nobody changes it before that.
    """
    queue = Queue.read(store)
    if task_id not in queue.tasks or task_id in _due(store, queue, task_id):
        return ""
    task = queue.tasks[task_id]
    before = [queue.tasks[name] for name in task.after if name in queue.tasks]
    if not before:
        return f"waits for its turn; {_SEE_PLACE}"
    turn = f", in its turn; {_SEE_PLACE}" if task.slots else ""
    return f"begins after {in_words(before)}{turn}"


def _due(store: Store, queue: Queue, starting: str = "") -> list[str]:
    """Returns the tasks whose supervisors should be awake.

    Args:
        store: The store.
        queue: The queue.
        starting: A task that has no supervisor yet, and is about to get one.
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
        all_times=False, counts=lambda task_id: task_id == starting or queue.is_led(task_id)
    ):
        kind = queue.tasks[place.task_id].slots[0]["slots"]
        ahead[str(kind)] += not place.may_start
        if place.may_start or ahead[str(kind)] <= AWAKE_AHEAD:
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
    good = {
        key.id for key in store.task_keys() if key.state == State.COMPLETED
    } | queue.tasks.keys()
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
