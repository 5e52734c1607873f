"""The queue as the store has it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.state import clock
from flowlite.state.store import Store, UnfinishedTask
from flowlite.supervise.queue import asleep
from flowlite.supervise.queue.backfill import Demand, Holding, Place, Request, demand_of, schedule
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.lifecycle import State

# A launch that is open for longer was refused, or takes long: it is not passed any more.
_REFUSED_AFTER = 3.0
# Tasks that are named in one sentence.
MOST_NAMED = 3
_PRIORITIES = {"high": 0, "med": 1, "low": 2}
_NOT_LAUNCHED = frozenset({State.PENDING, State.PROVISIONING})


@dataclass(frozen=True, slots=True)
class Queue:
    """All unfinished tasks at one moment.

    Attributes:
        tasks: By id.
        waiting: Those that wait for slots, in the order of the queue.
    """

    home: Path
    now: float
    tasks: Mapping[str, UnfinishedTask]
    waiting: Sequence[Request]
    holdings: Mapping[str, Holding]
    _alive: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, growing: str = "") -> Queue:
        """Reads the queue. Raises StoreError.

        Args:
            growing: A task that has what it needs, and waits for more in its place of the queue.
        """
        home = store.path.parent
        now = clock.now(home)
        tasks = {task.id: task for task in store.unfinished()}
        ordered = sorted(tasks.values(), key=_order)
        known = set(tasks)
        requests = [
            request
            for task in ordered
            if not known.intersection(task.after)
            and (request := _request(task, now, grows=task.id == growing))
        ]
        holdings = {task.id: held for task in ordered if (held := _holding(task, now))}
        return cls(home, now, tasks, requests, holdings)

    def places(
        self, *, all_times: bool = True, counts: Callable[[str], bool] | None = None
    ) -> Iterator[Place]:
        """Yields the places of the tasks that wait for slots.

        Args:
            all_times: As for `schedule`.
            counts: Which tasks count; by default those that have a supervisor.
        """
        here = counts or self.is_led
        requests = (each for each in self.waiting if here(each.task_id))
        # What a task still holds that has no supervisor, only its provider knows.
        held = [each for task_id, each in self.holdings.items() if self.is_led(task_id)]
        return schedule(self.now, held, requests, all_times=all_times)

    def may_start(self, task_id: str, slots: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a task may launch now in its turn if it asks for these slots (`Plan.slots`) instead of its own."""
        task = self.tasks.get(task_id)
        if task is None:
            return False
        asks = replace(task, slots=tuple(map(dict, slots)), held=(), launching_since=None)
        request = _request(asks, self.now, grows=False)
        if request is None:
            return False
        others = [each for each in self.waiting if each.task_id != task_id]
        ordered = sorted([*others, request], key=lambda each: _order(self.tasks[each.task_id]))
        places = replace(self, waiting=ordered).places(all_times=False)
        return any(each.may_start for each in places if each.task_id == task_id)

    def is_led(self, task_id: str) -> bool:
        """Whether a task has a supervisor, asleep or not. Others pass a task that has none."""
        if self.tasks[task_id].led_until > self.now:
            return True
        if task_id not in self._alive:
            # Most supervisors in a long queue are asleep, which is seen much faster.
            self._alive[task_id] = self.is_asleep(task_id) or process_identity.has_supervisor(
                self.home, task_id
            )
        return self._alive[task_id]

    def users_of(self, task: UnfinishedTask) -> list[UnfinishedTask]:
        """The tasks that hold slots that a task could have."""
        wanted = _slots(task)
        holders = (self.tasks[name] for name in self.holdings)
        return [holder for holder in holders if wanted.intersection(_slots(holder))]

    def is_asleep(self, task_id: str) -> bool:
        """Whether a task's supervisor is asleep."""
        return self.tasks[task_id].state == State.PENDING and asleep.is_asleep(self.home, task_id)


def in_words(tasks: Sequence[UnfinishedTask]) -> str:
    """The first of some tasks, with name and id."""
    return ", ".join(f"{task.name} ({task.id})" for task in tasks[:MOST_NAMED])


def _order(task: UnfinishedTask) -> tuple[int, float, str]:
    return _PRIORITIES.get(task.priority, 1), task.created_at, task.id


def _slots(task: UnfinishedTask) -> set[str]:
    return {str(slot) for kind in task.slots for slot in kind["slots"]}


def _lacking(task: UnfinishedTask, *, grows: bool) -> tuple[Demand, ...]:
    """What a task still lacks, or what it may take beyond that if it grows."""
    lacking = []
    for demand in map(demand_of, task.slots):
        held = _held(task, demand)
        count, most = max(0, demand.count - held), max(0, demand.most - held)
        if count or (grows and most):
            lacking.append(replace(demand, count=count, most=most))
    return tuple(lacking)


def _held(task: UnfinishedTask, demand: Demand) -> int:
    """How many slots of a demand a task holds."""
    if "" not in task.held:
        return len(set(demand.slots).intersection(task.held))
    # They are not known one by one.
    return len(task.held) * demand.each if demand.most else demand.count


def _request(task: UnfinishedTask, now: float, *, grows: bool) -> Request | None:
    if task.cancel_requested or not (grows or task.state in _NOT_LAUNCHED):
        return None
    demands = _lacking(task, grows=grows)
    since = task.launching_since
    refused = since is not None and now - since > _REFUSED_AFTER and not grows
    return Request(task.id, demands, task.max_run_seconds, refused) if demands else None


def _holding(task: UnfinishedTask, now: float) -> Holding | None:
    if not task.slots or not task.held:
        return None
    longest = task.max_run_seconds
    until = None if longest is None else (task.started_at or now) + longest
    named = frozenset(filter(None, task.held))
    unnamed = [replace(each, count=_held(task, each)) for each in map(demand_of, task.slots)]
    return Holding(() if named else tuple(unnamed), named, until)
