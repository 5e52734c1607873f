"""How long a task may still run, what it may still cost, and how it reads when that is over."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flowlite.provider import Plan
from flowlite.store import InstanceRecord, TaskRecord
from flowlite.supervise import reasons
from flowlite.supervise.cost import cost_of, rate_of


@dataclass(eq=False, repr=False)
class Limits:
    """The caps of one task. `config` is `TaskConfig` as JSON."""

    plan: Plan
    config: dict[str, Any]

    def time_left(self, record: TaskRecord) -> float | None:
        """Seconds the gang may still run, counted from the first time its workers started; None for no limit."""
        most = self.plan.max_run_seconds
        if most is None or record.started_at is None:
            return most
        return most - (time.time() - record.started_at)

    def spent(self, instances: Iterable[InstanceRecord]) -> str:
        """Why the task must stop for its cost; "" as long as it need not."""
        cap = self.plan.max_cost
        if cap is None or cost_of(instances, time.time()) < cap:
            return ""
        return f"max_cost: ${cap:.2f} are used up"

    def warm_seconds(self, wanted: float, instances: Iterable[InstanceRecord]) -> float:
        """How long nodes may be kept for the next task: as wanted, or as long as the money lasts."""
        found, now = list(instances), time.time()
        rate = rate_of(found, now)
        if self.plan.max_cost is None or rate <= 0:
            return wanted
        left = self.plan.max_cost - cost_of(found, now)
        return max(0.0, min(wanted, left / rate * 3600))

    def time_is_over(self) -> str:
        """Which cap the longest run came from."""
        most, hours = self.plan.max_run_seconds, self.config.get("max_run_time_hours")
        lasted = reasons.duration(most or 0.0)
        if self.plan.max_cost is None or (hours is not None and hours * 3600 == most):
            return f"max_run_time_hours: stopped after {lasted}"
        return f"max_cost: ${self.plan.max_cost:.2f} are used up after {lasted}"
