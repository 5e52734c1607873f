"""The caps of a task: how long it may still run, what it may still cost, and the reason shown when a cap is reached."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Plan
from flowlite.provider.dollars import dollars, exact
from flowlite.state import clock
from flowlite.state.store import InstanceRecord, TaskRecord
from flowlite.supervise.money.cost import cost_of, rate_of
from flowlite.supervise.record import wording

# A deadline that was reached this many seconds early still counts as reached, since clocks and polling are not exact.
_NEAR = 1.0

# Average seconds per attempt above which a preemption needs no pause.
_WORTH_IT = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0


@dataclass(eq=False, repr=False)
class Caps:
    """The caps of one task. `config` is `TaskConfig` as JSON.

    Time counts from the first start of the workers. Money counts from the launch of every machine, including those of
    earlier attempts and those that were replaced. The run ends early enough that the teardown is paid for too.
    """

    plan: Plan
    config: dict[str, Any] = field(default_factory=dict)

    def time_left(
        self, record: TaskRecord, instances: Iterable[InstanceRecord] = (), more: int = 0
    ) -> float | None:
        """Seconds the gang may still run, perhaps with so many more machines; None for no limit."""
        found = (self._by_time(record), self._by_money(instances, more))
        return min((left for left in found if left is not None), default=None)

    def plan_left(self, record: TaskRecord, instances: Iterable[InstanceRecord]) -> Plan:
        """Returns the plan for machines launched now, without the time and money that was used already."""
        found = list(instances)
        if record.started_at is None and not found:
            return self.plan
        money = self.plan.max_cost
        if money is not None:
            money = max(0.0, money - cost_of(found, clock.now()))
        left = self.time_left(record, found)
        seconds = None if left is None else max(0.0, left)
        return dataclasses.replace(self.plan, max_run_seconds=seconds, max_cost=money)

    def spent(self, instances: Iterable[InstanceRecord]) -> str:
        """Returns why the task must stop for its cost; "" if it need not."""
        cap = self.plan.max_cost
        if cap is None:
            return ""
        found, now = list(instances), clock.now()
        cost = cost_of(found, now)
        if cost >= cap:
            return f"max_cost: {exact(cap)} are used up"
        end = rate_of(found, now) * self.plan.reserved_seconds / 3600
        if cost + end < cap:
            return ""
        return f"max_cost: stopped at {dollars(cost)}, so that it ends below {exact(cap)}"

    def paid_seconds(self, instances: Iterable[InstanceRecord]) -> float | None:
        """Seconds until the gang has used up `max_cost`, less those reserved for its end; None without that cap."""
        left = self._by_money(instances, 0)
        return None if left is None else max(0.0, left)

    def warm_seconds(self, wanted: float, instances: Iterable[InstanceRecord]) -> float:
        """Seconds for which nodes may be kept for the next task: as wanted, but no longer than the money lasts.

        Nobody looks at a price that rises meanwhile.
        """
        found, now = list(instances), clock.now()
        rate = self._highest_rate(found, now)
        if self.plan.max_cost is None or rate <= 0:
            return wanted
        left = self.plan.max_cost - cost_of(found, now)
        return max(0.0, min(wanted, left / rate * 3600))

    def time_is_over(self, record: TaskRecord, told: str = "") -> str:
        """Returns which cap ended the run, or else the reason the gang gave, such as the end of a Slurm job."""
        most, cap = self.plan.max_run_seconds, self.plan.max_cost
        since = record.started_at or clock.now()
        if told and cap is None and (most is None or clock.now() - since < most - _NEAR):
            return told
        hours = self.config.get("max_run_time_hours")
        asked = math.inf if hours is None else float(hours) * 3600
        ran = clock.now() - record.started_at if record.started_at is not None else 0.0
        if ran >= asked - _NEAR or (cap is None and most is not None and asked <= most):
            return f"max_run_time_hours: stopped after {wording.duration(asked)}"
        if cap is None or self._reached_longest_run(ran):
            over = f"the longest run of {wording.duration(ran if most is None else most)} is over"
            less = "" if hours is None else f", less than max_run_time_hours ({hours:g})"
            return f"{over}: {self.plan.provider} allows no more there{less}"
        lasted = wording.duration(ran)
        if not self.plan.reserved_seconds:
            return f"max_cost: {exact(cap)} are used up after {lasted}"
        return f"max_cost: stopped after {lasted}, so that it ends below {exact(cap)}"

    def _reached_longest_run(self, ran: float) -> bool:
        """Whether the plan's longest run is over, and it is shorter than what the money was planned to last."""
        most, paid = self.plan.max_run_seconds, self.plan.paid_seconds
        if most is None or ran < most - _NEAR:
            return False
        return paid is None or most < paid - self.plan.reserved_seconds - _NEAR

    def _by_time(self, record: TaskRecord) -> float | None:
        most = self.plan.max_run_seconds
        if most is None or record.started_at is None:
            return most
        return most - (clock.now() - record.started_at)

    def _by_money(self, instances: Iterable[InstanceRecord], more: int) -> float | None:
        cap, found, now = self.plan.max_cost, list(instances), clock.now()
        rate = self._highest_rate(found, now) + self.plan.highest_rate * more
        if cap is None or rate <= 0:
            return None
        left = cap - cost_of(found, now)
        return left / rate * 3600 - self.plan.reserved_seconds

    def _highest_rate(self, instances: Iterable[InstanceRecord], now: float) -> float:
        """US dollars per hour that the charged instances can cost at most; for the planned gang if there are none."""
        charged = [i for i in instances if i.ended_at is None or i.ended_at > now]
        if not charged:
            return self.plan.highest_rate * self.plan.machines
        dearer = [max(0.0, i.price_per_hour - self.plan.highest_price) for i in charged]
        return self.plan.highest_rate * len(charged) + sum(dearer)


def pause_after_preemption(before: int, ran: float) -> float:
    """Seconds to wait before the gang starts again after a preemption; 0 unless preemptions follow quickly.

    Where machines are taken away as soon as they are launched, every attempt costs money and achieves nothing.

    Args:
        before: Preemptions before this one.
        ran: Seconds since the task's workers started for the first time.
    """
    if before == 0 or ran > _WORTH_IT * (before + 1):
        return 0.0
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(before - 1, 16)))
