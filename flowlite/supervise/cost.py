"""Where money is added up: the one place."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flowlite.store import InstanceRecord, Store


def cost_of(instances: Iterable[InstanceRecord], now: float) -> float:
    """US dollars for these instances, from the moment each is charged until its known end, or until `now`.

    An instance that is kept warm for the next task is charged to this one until somebody takes it over.
    """
    return sum(
        instance.price_per_hour * _hours(instance, now)
        for instance in instances
        if instance.price_per_hour
    )


def cost_so_far(store: Store, task_id: str, now: float | None = None) -> float:
    """US dollars a task has cost until now."""
    return cost_of(store.instances(task_id), time.time() if now is None else now)


def rate_of(instances: Iterable[InstanceRecord], now: float | None = None) -> float:
    """US dollars per hour of those that are still charged."""
    at = time.time() if now is None else now
    return sum(i.price_per_hour for i in instances if i.ended_at is None or i.ended_at > at)


def _hours(instance: InstanceRecord, now: float) -> float:
    # What is kept warm has an end that is yet to come.
    until = now if instance.ended_at is None else min(now, instance.ended_at)
    return max(0.0, until - instance.launched_at) / 3600
