"""When each instance of a task started and ended, and its price, as the provider reports them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from flowlite.provider import PRICES, Instance
from flowlite.state import clock
from flowlite.state.store import InstanceRecord
from flowlite.supervise.money.cost import END_IS_A_BOUND

# Usual seconds between two looks at a task's instances. If the provider does not report an end, the end is known well
# enough when the instance was seen this recently.
_BETWEEN_LOOKS = 90.0

LOST = "lost"
ENDED = "ended"
WARM = "warm"


class Billing:
    """The listings of one task so far. What the provider does not report is taken from our own clock."""

    def __init__(self, provider: str, price: float) -> None:
        """
        Args:
            provider: Name of the provider.
            price: The plan's price, used where a listing has none.
        """
        self._provider = provider
        self._price = price
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
        launched = instance.launched_at or (before.launched_at if before else clock.now())
        fresh = InstanceRecord(
            id=instance.id,
            task_id=instance.task_id,
            provider=self._provider,
            state=instance.state,
            price_per_hour=before.price_per_hour if before else self._price_of(instance),
            launched_at=launched,
            data=_data_of(instance),
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
        launched = seen.launched_at or record.launched_at
        return self._repriced(dataclasses.replace(record, launched_at=launched), clock.now())

    def kept(self, record: InstanceRecord, instance: Instance, until: float) -> InstanceRecord:
        """Returns the row of an instance that is kept for the next task until this time."""
        now = self.corrected(record)
        prices = {PRICES: now.data[PRICES]} if PRICES in now.data else {}
        data = {**prices, **_data_of(instance)}
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
        launched = record.launched_at
        if seen is not None:
            launched = seen.launched_at or launched
            if seen.state == ENDED and seen.ended_at:
                until, told = seen.ended_at, True
            if PRICES in seen.data:
                record = self._repriced(record, until)
        data = {key: value for key, value in record.data.items() if key != END_IS_A_BOUND}
        if not told:
            if ends_by := float(record.data.get("ends_by") or 0.0):
                until = min(until, ends_by)
            if until - self._alive_at.get(record.id, launched) > _BETWEEN_LOOKS:
                data[END_IS_A_BOUND] = True
        elif record.data.get(END_IS_A_BOUND) and until == record.ended_at:
            data[END_IS_A_BOUND] = True
        state = LOST if record.state == LOST else ENDED
        return dataclasses.replace(
            record, state=state, launched_at=launched, ended_at=max(launched, until), data=data
        )

    def unknown(self, known: Iterable[str]) -> list[InstanceRecord]:
        """Returns rows for instances that are not in the store but were listed with a launch time, and thus charged."""
        names = set(known)
        return [
            self.record(each, None)
            for name, each in list(self._seen.items())
            if name not in names and each.launched_at
        ]

    def _price_of(self, instance: Instance) -> float:
        return instance.price_per_hour or self._price

    def _repriced(self, record: InstanceRecord, now: float) -> InstanceRecord:
        """Returns the row with the price as last listed. Earlier time is charged at the price of that time."""
        seen = self._seen.get(record.id)
        if seen is not None and (told := seen.data.get(PRICES)):
            # The provider's price history is more exact than the times at which we looked.
            data = {**record.data, PRICES: told}
            return dataclasses.replace(record, price_per_hour=seen.price_per_hour, data=data)
        price = seen.price_per_hour if seen is not None else 0.0
        if not price or price == record.price_per_hour:
            return record
        prices = record.data.get(PRICES) or [[record.launched_at, record.price_per_hour]]
        data = {**record.data, PRICES: [*prices, [now, price]]}
        return dataclasses.replace(record, price_per_hour=price, data=data)


def _data_of(instance: Instance) -> dict[str, Any]:
    """The `data` of an instance's row."""
    prices = {PRICES: instance.data[PRICES]} if PRICES in instance.data else {}
    return {**instance.to_json(), **prices}
