"""When each instance of a task started and ended, and its price, as the provider reports them.

The provider's times are of its own clock, and that of a FLOW_HOME may be hours off: it was wrong when this machine was
started, or this machine is a virtual one that was paused. Where a launch would then lie before it was asked for, or in
the future, all times of the instance are moved by as much, so that its cost until now is right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from flowlite.provider import PRICES, Instance
from flowlite.state import clock
from flowlite.state.store import InstanceRecord
from flowlite.supervise.money.cost import END_IS_A_BOUND

# Usual seconds between two looks at a task's instances. If the provider does not report an end, the end is known well
# enough when the instance was seen this recently.
_BETWEEN_LOOKS = 90.0
# If the provider's clock and ours differ by more, ours is wrong.
_CLOCKS_DIFFER = 60.0
# Key in an instance's row: seconds that were added to the provider's times.
_MOVED = "moved"

LOST = "lost"
ENDED = "ended"
WARM = "warm"


class Billing:
    """The listings of one task so far. What the provider does not report is taken from our own clock."""

    def __init__(
        self,
        provider: str,
        price: float,
        asked_at: Callable[[Instance], float] = lambda instance: 0.0,
    ) -> None:
        """
        Args:
            price: The plan's price, used where a listing has none.
            asked_at: Returns when a new instance was asked for, by our clock; 0 if that is not known.
        """
        self._provider = provider
        self._price = price
        self._asked_at = asked_at
        self._seen: dict[str, Instance] = {}
        self._alive_at: dict[str, float] = {}

    def note(self, listed: Iterable[Instance]) -> None:
        """Stores a listing, including instances that have ended."""
        now = clock.now()
        for instance in listed:
            if instance.state != ENDED and not instance.unlisted:
                self._alive_at[instance.id] = now
            before = self._seen.get(instance.id)
            if before is not None and not instance.ended_at and before.ended_at:
                # An older listing may arrive after a better one.
                continue
            self._seen[instance.id] = instance

    def record(
        self, instance: Instance, before: InstanceRecord | None, rank: int | None = None
    ) -> InstanceRecord:
        """Returns the row of an instance that exists."""
        moved = self._moved(instance, before)
        launched = before.launched_at if before else clock.now()
        if instance.launched_at:
            launched = instance.launched_at + moved
        fresh = InstanceRecord(
            id=instance.id,
            task_id=instance.task_id,
            provider=self._provider,
            state=instance.state,
            price_per_hour=before.price_per_hour
            if before
            else instance.price_per_hour or self._price,
            launched_at=launched,
            data=_data_of(instance, moved),
            node_rank=rank if before is None or rank is not None else before.node_rank,
        )
        if before is not None and PRICES in before.data:
            fresh = dataclasses.replace(fresh, data={**fresh.data, PRICES: before.data[PRICES]})
        return self._repriced(fresh, clock.now()) if before else fresh

    def corrected(self, record: InstanceRecord) -> InstanceRecord:
        """Returns the row of an instance that is not known to have ended, corrected by the last listing."""
        seen = self._seen.get(record.id)
        if seen is None:
            return record
        return self._repriced(self._in_our_time(record, seen), clock.now())

    def kept(self, record: InstanceRecord, instance: Instance, until: float) -> InstanceRecord:
        """Returns the row of an instance that is kept for the next task until this time."""
        now = self.corrected(record)
        prices = {PRICES: now.data[PRICES]} if PRICES in now.data else {}
        data = {**prices, **_data_of(instance, self._moved(instance, now))}
        return dataclasses.replace(now, state=WARM, ended_at=until, data=data)

    def looked_up(self, record: InstanceRecord) -> InstanceRecord:
        """Returns the row of an instance that was kept, with what it has cost as far as the last listing says that."""
        seen = self._seen.get(record.id)
        if seen is None:
            return record
        if seen.state == ENDED:
            known = self.ended(record, clock.now()) if seen.ended_at else record
            return dataclasses.replace(
                known, data={**known.data, "cost_at_most": not seen.ended_at}
            )
        found, now = self.corrected(record), clock.now()
        # What is still there after its time is charged on.
        return dataclasses.replace(found, ended_at=max(found.ended_at or now, now))

    def ended(self, record: InstanceRecord, now: float) -> InstanceRecord:
        """Returns the row of an instance that is gone, with its end as listed, as recorded before, or now.

        An instance that ended unseen, and that the provider does not list any more, is charged until now, or until it
        must have ended by itself. Its end is marked as a bound (`END_IS_A_BOUND`).
        """
        seen = self._seen.get(record.id)
        until, told = now, False
        if record.ended_at is not None:
            until, told = record.ended_at, True
        if seen is not None:
            record = self._in_our_time(record, seen)
            if seen.state == ENDED and seen.ended_at:
                until, told = seen.ended_at + _moved_by(record), True
            if PRICES in seen.data:
                record = self._repriced(record, until)
        data = {key: value for key, value in record.data.items() if key != END_IS_A_BOUND}
        if not told:
            if ends_by := float(record.data.get("ends_by") or 0.0):
                until = min(until, ends_by + _moved_by(record))
            if until - self._alive_at.get(record.id, record.launched_at) > _BETWEEN_LOOKS:
                data[END_IS_A_BOUND] = True
        elif record.data.get(END_IS_A_BOUND) and until == record.ended_at:
            data[END_IS_A_BOUND] = True
        state = LOST if record.state == LOST else ENDED
        until = max(record.launched_at, until)
        return dataclasses.replace(record, state=state, ended_at=until, data=data)

    def unknown(self, known: Iterable[str]) -> list[InstanceRecord]:
        """Returns rows for instances that are not in the store but were listed with a launch time, and thus charged."""
        names = set(known)
        return [
            self.record(each, None)
            for name, each in list(self._seen.items())
            if name not in names and each.launched_at
        ]

    def _in_our_time(self, record: InstanceRecord, seen: Instance) -> InstanceRecord:
        """Returns the row with its launch as last listed."""
        if not seen.launched_at:
            return record
        moved = self._moved(seen, record)
        data = {**record.data, "launched_at": seen.launched_at}
        if moved or _MOVED in data:
            data[_MOVED] = moved
        return dataclasses.replace(record, launched_at=seen.launched_at + moved, data=data)

    def _moved(self, instance: Instance, before: InstanceRecord | None) -> float:
        """Seconds to add to the times of an instance. They stay the same while its launch is the one known before."""
        if not instance.launched_at:
            return _moved_by(before) if before else 0.0
        known = float(before.data.get("launched_at") or 0.0) if before else 0.0
        if before and abs(instance.launched_at - known) <= _CLOCKS_DIFFER:
            return _moved_by(before)
        asked, now = self._asked_at(instance), clock.now()
        if instance.launched_at > now + _CLOCKS_DIFFER:
            return (before.launched_at if before else now) - instance.launched_at
        if instance.launched_at < asked - _CLOCKS_DIFFER:
            return asked - instance.launched_at
        return 0.0

    def _repriced(self, record: InstanceRecord, now: float) -> InstanceRecord:
        """Returns the row with the price as last listed. Earlier time is charged at the price of that time."""
        seen = self._seen.get(record.id)
        if seen is not None and (told := seen.data.get(PRICES)):
            # The provider's price history is more exact than the times at which we looked.
            data = {**record.data, PRICES: _moved_prices(told, _moved_by(record))}
            return dataclasses.replace(record, price_per_hour=seen.price_per_hour, data=data)
        price = seen.price_per_hour if seen is not None else 0.0
        if not price or price == record.price_per_hour:
            return record
        prices = record.data.get(PRICES) or [[record.launched_at, record.price_per_hour]]
        data = {**record.data, PRICES: [*prices, [now, price]]}
        return dataclasses.replace(record, price_per_hour=price, data=data)


def _data_of(instance: Instance, moved: float) -> dict[str, Any]:
    """The `data` of an instance's row."""
    data = instance.to_json()
    if PRICES in instance.data:
        data[PRICES] = _moved_prices(instance.data[PRICES], moved)
    return {**data, _MOVED: moved} if moved else data


def _moved_by(record: InstanceRecord) -> float:
    return float(record.data.get(_MOVED) or 0.0)


def _moved_prices(prices: Iterable[Iterable[float]], moved: float) -> list[list[float]]:
    return [[since + moved, price] for since, price in prices]
