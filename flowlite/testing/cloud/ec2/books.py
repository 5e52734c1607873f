"""EC2's bill for the instances and volumes of the account, computed independently of the client's own figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flowlite.state import clock
from flowlite.testing.cloud.ec2.life_record import Life
from flowlite.testing.cloud.ec2.market import ADDRESS_PRICE, DISK_PRICE, Market
from flowlite.testing.cloud.ec2.storage.disks import Owned

LEAST_SECONDS = 60.0
MONTH_HOURS = 30 * 24


def bill(lives: Iterable[Life], market: Market) -> list[dict[str, Any]]:
    """One entry for each instance since the reset: {"id", "seconds", "since", "until", "instance", "extras"}.

    Money is in US dollars, and times are Unix times; `until` is None while the instance is charged.

    The time from the launch until the instance shuts down is charged, at least a minute: the instance at the on-demand
    price, or at the spot prices of that time; its disks by the GB; its public address.
    """
    return [_entry(life, market) for life in lives]


def volume_bill(owned: Mapping[str, Owned], now: float) -> list[dict[str, Any]]:
    """One entry for each EBS volume since the reset: {"id", "seconds", "dollars"}.

    Its size is charged from its creation to its deletion.
    """
    found = []
    for name, each in owned.items():
        seconds = (now if each.until is None else each.until) - each.since
        month = each.gigabytes * DISK_PRICE
        found.append(
            {"id": name, "seconds": seconds, "dollars": month * seconds / 3600 / MONTH_HOURS}
        )
    return found


def _entry(life: Life, market: Market) -> dict[str, Any]:
    to_wall = clock.wall() - clock.monotonic()
    begin = life.history[0][0] + to_wall
    ends = [at for at, state in life.history if state in ("shutting-down", "terminated")]
    ended = min(ends) + to_wall if ends else None
    end = max(clock.wall() if ended is None else ended, begin + LEAST_SECONDS)
    kind, zone = str(life.instance.instance_type), str(life.instance.placement.zone)
    hours = (end - begin) / 3600
    owed = sum(
        price * (until - since) / 3600
        for since, until, price in _prices(life, market, kind, zone, begin, end)
    )
    extras = life.gigabytes * DISK_PRICE / MONTH_HOURS + (ADDRESS_PRICE if life.public else 0.0)
    return {
        "id": life.instance.id,
        "seconds": end - begin,
        "since": begin,
        "until": ended,
        "instance": owed,
        "extras": extras * hours,
    }


def _prices(
    life: Life, market: Market, kind: str, zone: str, begin: float, end: float
) -> Iterator[tuple[float, float, float]]:
    """The periods of one price each, as (begin, end, dollars per hour)."""
    if life.block:
        return
    if life.spot is None:
        yield begin, end, market.price(kind, zone[:-1]) or 0.0
        return
    changes = [(moment.timestamp(), price) for moment, price in market.spot.get((kind, zone), [])]
    usual = market.usual_spot_price(kind, zone) or 0.0
    steps = [(0.0, usual), *changes, (end, 0.0)]
    for (since, price), (until, _) in itertools.pairwise(steps):
        first, last = max(since, begin), min(until, end)
        if last > first:
            yield first, last, price
