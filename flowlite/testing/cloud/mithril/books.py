"""The bill that Mithril would write for the instances of the account, worked out apart from the client's own figures.

Neither the history of prices that the API answers with nor anything that a client has asked is used: only when each
instance was in which state, and what its auction came to at that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flowlite.testing.cloud.mithril.records import Instance
from flowlite.testing.cloud.mithril.world import Auction

CHARGED = frozenset({"STATUS_RUNNING", "STATUS_PREEMPTING", "STATUS_RELOCATING"})
"""States in which an instance that has been running is paid for; one that starts, or is being stopped, is not."""


def bill(
    instances: Iterable[Instance], auctions: Mapping[str, Auction], now: float
) -> list[dict[str, Any]]:
    """One entry for each instance there ever was: {"id", "bid", "seconds", "since", "until", "dollars"}.

    `since` and `until` are the first and the last moment that is charged, `until` None while it goes on.
    """
    return [_entry(each, auctions[each.instance_type], now) for each in instances]


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
    """From when until when it was charged."""
    started = False
    for (since, state), (until, _) in itertools.pairwise([*instance.states, (now, "")]):
        started = started or state == "STATUS_RUNNING"
        if started and state in CHARGED:
            yield since, until


def _cost(auction: Auction, since: float, until: float) -> float:
    """US dollars for an instance of an auction in that time."""
    steps = [*auction.history, (until, 0)]
    return sum(
        max(0.0, min(later, until) - max(earlier, since)) * cents / 360000
        for (earlier, cents), (later, _) in itertools.pairwise(steps)
    )
