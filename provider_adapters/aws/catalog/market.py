"""The types that meet a task's requirements, with their zones and prices, for plans and offers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

from flowlite.node.quick_dataclass import dataclass
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements, by_size
from provider_adapters.aws.catalog.regions import Catalog

# Of the many types without GPU, only the smallest suitable ones are compared by price.
_MOST = 24


@dataclass(frozen=True, slots=True)
class Choice:
    """One type in one region.

    Attributes:
        price: Present price in US dollars per instance and hour: on demand, or in the cheapest zone on spot.
        on_demand: The price on demand; None if the price list does not have it.
        zones: Price in each zone that has it, in the order in which zones are tried.
    """

    machine: Machine
    region: str
    spot: bool
    price: float
    on_demand: float | None
    zones: dict[str, float] = field(default_factory=dict)


def fitting(catalog: Catalog, wanted: MachineRequirements) -> list[Machine]:
    """The types of a region that meet the requirements, the smallest first."""
    return by_size(m for m in catalog.machines(wanted) if not wanted.misfit(m))[:_MOST]


def choices(
    catalog: Catalog,
    machines: Sequence[Machine],
    *,
    spot: bool,
    zones: Collection[str] | None = None,
) -> list[Choice]:
    """The prices and zones of these machines, the cheapest first; types without a price are left out.

    Args:
        zones: Zones to consider; None for all.
    """
    names = [machine.name for machine in machines]
    if not names:
        return []
    offered = catalog.zones(names)
    listed = catalog.prices(names)
    now = catalog.spot_prices(names) if spot else {}
    found = []
    for machine in machines:
        there = [z for z in offered.get(machine.name, ()) if zones is None or z in zones]
        on_demand = listed.get(machine.name)
        if spot:
            prices = {z: p for z, p in now.get(machine.name, {}).items() if z in there}
            prices = dict(sorted(prices.items(), key=lambda item: (item[1], item[0])))
        else:
            prices = dict.fromkeys(there, on_demand) if on_demand is not None else {}
        if prices:
            price = min(prices.values())
            found.append(Choice(machine, catalog.region, spot, price, on_demand, prices))
    return sorted(found, key=lambda each: (each.price, each.machine.name))
