"""Formats money and durations in a few characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.provider.dollars import dollars
from flowlite.supervise.money.price_text import spent

if TYPE_CHECKING:
    from flowlite.display.shown_task import ShownTask
    from flowlite.state.records import TaskRecord

UNKNOWN = "-"


def money(amount: float | None) -> str:
    """An amount such as `$1.25`; with more digits for fractions of a cent."""
    if amount is None:
        return UNKNOWN
    return dollars(amount)


def cost_of(task: ShownTask) -> str:
    """What a task has cost so far, such as `$1.25`; `≤ $1.25` if it may have cost less."""
    amount = task.estimated_cost
    return spent(amount, amount > 0 and task.cost_is_upper_bound)


def run_time(record: TaskRecord) -> str:
    """For how long the workers of a task have run, or ran; "" before they start."""
    if record.started_at is None:
        return ""
    from flowlite.state import clock

    return duration((record.finished_at or clock.now()) - record.started_at)


def duration(seconds: float | None) -> str:
    """A duration such as `0.8s`, `14s`, `3m12s`, `2h05m`, `3d04h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
