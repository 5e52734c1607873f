"""Mithril's bill for the instances and volumes of the account, computed independently of the client's own figures.

It uses only the states of each instance and the auction prices at the time, not the API's price history and not what a
client has asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flowlite.testing.cloud.mithril.records import Instance, Volume
from flowlite.testing.cloud.mithril.world import Auction

CHARGED = frozenset({"STATUS_RUNNING", "STATUS_PREEMPTING", "STATUS_RELOCATING"})
"""The states in which an instance that has been running is charged. Starting and stopping are free."""


VOLUME_CENTS = 8
"""The price of volumes per GB and month."""
MONTH = 30 * 86400.0


def bill(
    instances: Iterable[Instance], auctions: Mapping[str, Auction], now: float
) -> list[dict[str, Any]]:
    """One entry for each instance since the reset: {"id", "bid", "seconds", "since", "until", "dollars"}.

    `since` and `until` bound the charged time. `until` is None while it continues.
    """
    return [_entry(each, auctions[each.instance_type], now) for each in instances]


def volume_bill(volumes: Iterable[Volume], now: float) -> list[dict[str, Any]]:
    """One entry for each volume since the reset: {"id", "seconds", "dollars"}.

    Its size is charged from its creation to its deletion.
    """
    found = []
    for each in volumes:
        seconds = (now if each.deleted_at is None else each.deleted_at) - each.created_at
        month = each.capacity_gb * VOLUME_CENTS / 100
        found.append({"id": each.fid, "seconds": seconds, "dollars": month * seconds / MONTH})
    return found


def _entry(instance: Instance, auction: Auction, now: float) -> dict[str, Any]:
    spans = list(_charged(instance, now))
    going_on = bool(spans) and instance.status in CHARGED
    return {
        "id": instance.fid,
        "bid": instance.bid,
        "seconds": sum(until - since for since, until in spans),
        "since": spans[0][0] if spans else None,
        "until": spans[-1][1] if spans and not going_on else None,
        "dollars": sum(_cost(auction, since, until) for since, until in spans),
    }


def _charged(instance: Instance, now: float) -> Iterator[tuple[float, float]]:
    """The periods in which an instance was charged."""
    started = False
    for (since, state), (until, _) in itertools.pairwise([*instance.states, (now, "")]):
        started = started or state == "STATUS_RUNNING"
        if started and state in CHARGED:
            yield since, until


def _cost(auction: Auction, since: float, until: float) -> float:
    """The cost in US dollars of an instance of an auction in that period."""
    steps = [*auction.history, (until, 0)]
    return sum(
        max(0.0, min(later, until) - max(earlier, since)) * cents / 360000
        for (earlier, cents), (later, _) in itertools.pairwise(steps)
    )
