"""The order in which zones are tried. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flowlite.node.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """A zone with a subnet, in which a gang may start.

    Attributes:
        price: US dollars per instance and hour there; 0 in a capacity block.
    """

    region: str
    zone: str
    subnet: str
    vpc: str
    price: float
    image: Mapping[str, Any]

    @property
    def where(self) -> str:
        """Its name in the ledger."""
        return f"{self.region}/{self.zone}"


def sites_of(places: Sequence[Mapping[str, Any]]) -> list[Site]:
    """All zones of a plan, in the plan's order."""
    return [
        Site(
            region=place["region"],
            zone=zone["zone"],
            subnet=zone["subnet"],
            vpc=zone["vpc"],
            price=float(zone["price"]),
            image=place["image"],
        )
        for place in places
        for zone in place["zones"]
    ]


def order(
    sites: Sequence[Site],
    *,
    tried: Collection[str] = (),
    beside: str = "",
    must_be_beside: bool = False,
    refused_lately: Collection[str] = (),
) -> list[Site]:
    """The zones that are left to try, the best first.

    Args:
        tried: Zones (`where`) that have refused in this round.
        beside: The zone in which the task has other nodes; the others of its region are possible, too.
        must_be_beside: Whether only that zone is possible.
        refused_lately: Zones that recently had no capacity for any launch; they come last in their region.
    """
    left = [site for site in sites if site.where not in tried]
    if beside:
        # The nodes of a gang reach each other at private addresses.
        region = beside.partition("/")[0]
        left = [site for site in left if site.region == region]
    if beside and must_be_beside:
        left = [site for site in left if site.where == beside]
    regions = list(dict.fromkeys(site.region for site in sites))
    return sorted(
        left,
        key=lambda site: (
            site.where != beside,
            regions.index(site.region),
            site.where in refused_lately,
        ),
    )


def pause(rounds: int) -> float:
    """Seconds until all zones are asked again, after `rounds` rounds without success."""
    return float(min(300, 15 * 2**rounds))
