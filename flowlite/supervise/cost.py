"""Where money is added up: the one place."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flowlite.store import InstanceRecord, Store


def cost_of(instances: Iterable[InstanceRecord], now: float) -> float:
    """US dollars for these instances, from the moment each is charged until its known end, or until `now`."""
    return sum(
        instance.price_per_hour * _hours(instance, now)
        for instance in instances
        if instance.price_per_hour
    )


def cost_so_far(store: Store, task_id: str, now: float | None = None) -> float:
    """US dollars a task has cost until now."""
    return cost_of(store.instances(task_id), time.time() if now is None else now)


def rate_of(instances: Iterable[InstanceRecord]) -> float:
    """US dollars per hour of those that are still charged."""
    return sum(i.price_per_hour for i in instances if i.ended_at is None)


def _hours(instance: InstanceRecord, now: float) -> float:
    until = now if instance.ended_at is None else instance.ended_at
    return max(0.0, until - instance.launched_at) / 3600
