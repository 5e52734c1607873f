"""Computes costs. No other module adds up money."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from flowlite.provider import PRICES, VolumeInfo
from flowlite.state import clock
from flowlite.state.store import InstanceRecord, Store

MONTH_SECONDS = 30 * 86400.0
"""The month that providers charge storage by."""
END_IS_A_BOUND = "end_is_a_bound"
"""Key in an instance's `data`: its end was not seen, so `ended_at` is the latest possible time."""


def cost_of(instances: Iterable[InstanceRecord], now: float) -> float:
    """US dollars for these instances, each from the moment it is charged until its known end, or until `now`.

    An instance kept warm for the next task is charged to this one until another task takes it over.
    """
    charged = (
        price * (until - since) / 3600
        for instance in instances
        for since, until, price in _charges(instance, now)
    )
    return sum(charged, 0.0)


def cost_so_far(store: Store, task_id: str) -> float:
    """US dollars a task has cost until now."""
    return cost_of(store.instances(task_id), clock.now())


def cost_by_day(instances: Iterable[InstanceRecord], now: float) -> dict[str, float]:
    """US dollars by local day ("2025-01-31"), in the order of the days. Their sum is `cost_of`."""
    found: dict[str, float] = {}
    for instance in instances:
        for since, until, price in _charges(instance, now):
            for day, begin, end in _days(since, until):
                found[day] = found.get(day, 0.0) + price * (end - begin) / 3600
    return dict(sorted(found.items()))


def volume_cost(volume: VolumeInfo, now: float) -> float | None:
    """US dollars for a volume since it was created; None if that is not known."""
    if volume.by_use:
        return volume.cost_so_far
    if volume.price_per_month is None or not volume.created_at:
        return None
    return volume.price_per_month * max(0.0, now - volume.created_at) / MONTH_SECONDS


def rate_of(instances: Iterable[InstanceRecord], now: float | None = None) -> float:
    """US dollars per hour of the instances that are still charged."""
    at = clock.now() if now is None else now
    running = (i for i in instances if i.ended_at is None or i.ended_at > at)
    return sum((i.price_per_hour + _extras(i) for i in running), 0.0)


def is_upper_bound(instances: Iterable[InstanceRecord]) -> bool:
    """Whether the real cost may be less than `cost_of`, because the end or the prices of an instance were not seen."""
    return any(
        instance.data.get(END_IS_A_BOUND) or instance.data.get("cost_at_most")
        for instance in instances
    )


def _charges(instance: InstanceRecord, now: float) -> Iterator[tuple[float, float, float]]:
    """Yields the periods of an instance with a constant price: (from, until, price)."""
    # An instance that is kept warm has an end in the future.
    end = now if instance.ended_at is None else min(now, instance.ended_at)
    end = max(end, instance.launched_at + float(instance.data.get("least_seconds") or 0.0))
    extras = _extras(instance)
    prices = instance.data.get(PRICES) or [(instance.launched_at, instance.price_per_hour)]
    begins = [instance.launched_at, *(float(since) for since, _ in prices[1:])]
    for begin, until, (_, price) in zip(begins, [*begins[1:], end], prices, strict=True):
        since, until = max(begin, instance.launched_at), min(until, end)
        if until > since and (price or extras):
            yield since, until, float(price) + extras


def _extras(instance: InstanceRecord) -> float:
    return float(instance.data.get("extras_per_hour") or 0.0)


def _days(since: float, until: float) -> Iterator[tuple[str, float, float]]:
    """Splits a period at local midnights: (day, from, until)."""
    while since < until:
        day = datetime.date.fromtimestamp(since)
        tomorrow = datetime.datetime.combine(day + datetime.timedelta(days=1), datetime.time())
        # If a clock is put back, midnight may occur twice. The loop must advance all the same.
        end = min(until, max(tomorrow.timestamp(), since + 1.0))
        yield day.isoformat(), since, end
        since = end
