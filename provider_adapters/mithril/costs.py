"""What instances have cost, to the second, from Mithril's own history of prices and states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provider_adapters.mithril import requests
from provider_adapters.mithril.api import MithrilApi


@dataclass(frozen=True, slots=True)
class Charged:
    """One instance on the bill.

    Attributes:
        since: Unix time from which it is charged; 0 if it never was.
        until: Unix time of its end; 0 while it goes on.
        price: US dollars per hour, the mean over that time: prices move with every auction.
    """

    since: float
    until: float
    price: float


def charged(
    prices: Iterable[Mapping[str, Any]], ended: Mapping[str, float], now: float
) -> dict[str, Charged]:
    """The bill of each instance.

    Args:
        prices: Entries of `/v2/instances/pricing/history`.
        ended: Unix time at which each instance was gone, of those that are.
        now: Unix time until which one that goes on is counted.
    """
    found = {}
    for entry in prices:
        name = str(entry["instance_fid"])
        periods = []
        for event in entry["events"]:
            begin, end = requests.unix(event["start_time"]), requests.unix(event.get("end_time"))
            if begin is not None:
                periods.append((begin, end, int(event["price_cents"]) / 100))
        if not periods:
            continue
        since = min(begin for begin, _, _ in periods)
        goes_on = any(end is None for _, end, _ in periods) and name not in ended
        last = ended.get(name, now)
        until = max(last if end is None else end for _, end, _ in periods)
        paid = sum(
            price * max(0.0, (last if end is None else end) - begin)
            for begin, end, price in periods
        )
        length = until - since
        price = paid / length if length > 0 else periods[-1][2]
        found[name] = Charged(since, 0.0 if goes_on else until, price)
    return found


def ends(states: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """When each instance was gone, of those that are, from entries of `/v2/instances/status/history`."""
    found = {}
    for entry in states:
        events = sorted(entry["events"], key=lambda event: requests.unix(event["timestamp"]) or 0.0)
        since = None
        for event in events:
            if event["status"] not in requests.ENDED:
                since = None
            elif since is None:
                since = requests.unix(event["timestamp"])
        if since is not None:
            found[str(entry["instance_fid"])] = since
    return found


def bill_of(api: MithrilApi, project: str, bid_fid: str, now: float) -> dict[str, Charged]:
    """The bill of all instances of a bid, in two calls. Raises ProviderError."""
    query = requests.history_of(project, bid_fid)
    prices = api.pages("/v2/instances/pricing/history", query, "instances")
    states = api.pages("/v2/instances/status/history", query, "instances")
    return charged(prices, ends(states), now)
