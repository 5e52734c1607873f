"""The cost of instances, to the second, from Mithril's own history of prices and states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import PRICES, Instance
from flowlite.state import clock
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import MithrilApi
from provider_adapters.mithril.rest.response_format import understood

LIMIT = "limit_price"
"""Key in the `data` of a listed instance: what it can cost at most, in US dollars per hour."""


@dataclass(frozen=True, slots=True)
class Charged:
    """The bill of one instance.

    Attributes:
        since: Unix time from which it is charged.
        until: Unix time of its end; 0 while it goes on.
        price: The latest price, in US dollars per hour.
        prices: (Unix time, price) in order of time: prices change with every auction.
        paused: Whether it ended since its bid was paused. When the bid is resumed, listings do not tell that any more.
    """

    since: float
    until: float
    price: float
    prices: tuple[tuple[float, float], ...]
    paused: bool = False

    def on(self, instance: Instance) -> Instance:
        """An instance with the known figures of its cost."""
        data = {**instance.data, PRICES: [list(each) for each in self.prices]}
        return replace(
            instance,
            launched_at=self.since,
            ended_at=self.until,
            price_per_hour=self.price,
            data=data,
        )


def as_kept(instance: Instance) -> Instance:
    """A listed instance; if it is kept without a task, it costs as much as its bid allows from now on.

    Nobody looks at its price until the provider is asked again.
    """
    limit = instance.data.get(LIMIT)
    if instance.state != "warm" or limit is None:
        return instance
    prices = instance.data.get(PRICES) or [[instance.launched_at, instance.price_per_hour]]
    data = {**instance.data, PRICES: [*prices, [clock.now(), limit]]}
    return replace(instance, data=data, cost_at_most=True)


def charged(prices: Iterable[Mapping[str, Any]], ended: Mapping[str, float]) -> dict[str, Charged]:
    """The bill of each instance that was ever charged.

    Args:
        prices: Entries of `/v2/instances/pricing/history`.
        ended: Unix time of the end of each instance that is gone.
    """
    found = {}
    for entry in prices:
        name = str(entry["instance_fid"])
        periods = sorted(_periods(entry["events"]))
        if not periods:
            continue
        schedule: list[tuple[float, float]] = []
        over_at = max(end for _, end, _ in periods)
        for number, (begin, end, price) in enumerate(periods, 1):
            # A machine has one price at a time: a period whose end is not told yet ends where the next one begins.
            end = min(end, periods[number][0]) if number < len(periods) else over_at
            if begin == end:
                continue
            if schedule and schedule[-1] == (begin, 0.0):
                schedule.pop()
            if not schedule or schedule[-1][1] != price:
                schedule.append((begin, price))
            # Nothing is charged until the next period begins.
            schedule.append((end, 0.0))
        if not schedule:
            # It was given and taken at the same moment.
            schedule = [(over_at, periods[-1][2]), (over_at, 0.0)]
        last = schedule.pop()[0]
        over = math.isfinite(last) or name in ended
        until = min(last, ended.get(name, math.inf)) if over else 0.0
        found[name] = Charged(periods[0][0], until, periods[-1][2], tuple(schedule))
    return found


def _periods(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, float, float]]:
    """Start, end and price of each period; a period that has not ended has no end."""
    for event in events:
        begin, end = requests.unix(event["start_time"]), requests.unix(event.get("end_time"))
        if begin is not None:
            yield begin, math.inf if end is None else end, int(event["price_cents"]) / 100


def ends(states: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float, str]]:
    """Id, Unix time of the end, and first state after it, of each instance that is gone.

    Args:
        states: Entries of `/v2/instances/status/history`.
    """
    for entry in states:
        events = sorted(entry["events"], key=lambda event: requests.unix(event["timestamp"]) or 0.0)
        first = None
        for event in events:
            if event["status"] not in requests.ENDED:
                first = None
            elif first is None:
                first = event
        if first is not None and (since := requests.unix(first["timestamp"])) is not None:
            yield str(entry["instance_fid"]), since, str(first["status"])


@understood("the history of a bid's instances")
def bill_of(api: MithrilApi, project: str, bid_fid: str) -> dict[str, Charged]:
    """The bill of all instances of a bid, in two calls unless it is long. Raises ProviderError."""
    query = requests.history_of(project, bid_fid)
    gone = list(ends(api.histories("/v2/instances/status/history", query)))
    paused = {name for name, _, status in gone if status == requests.PAUSED_INSTANCE}
    prices = api.histories("/v2/instances/pricing/history", query)
    bill = charged(prices, {name: since for name, since, _ in gone})
    return {name: replace(each, paused=name in paused) for name, each in bill.items()}
