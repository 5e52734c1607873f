"""EC2's offers for a gang with prices, the cheapest first; if nothing fits, the nearest types and the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from flowlite.errors import FlowError
from flowlite.provider import Offer
from flowlite.spec.gpu import GpuRequest
from provider_adapters.aws.catalog import market, quotas
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements, nearest
from provider_adapters.aws.catalog.market import Choice
from provider_adapters.aws.catalog.regions import Catalog
from provider_adapters.aws.planning import Planner

_QUOTA_SECONDS = 3600.0


def offers_of(
    planner: Planner, gpu: str | None, count: int, spot: bool | None, region: str | None
) -> list[Offer]:
    """Offers on demand and on spot, or only one of them if asked for. Raises ConfigError, ProviderError."""
    request = GpuRequest.parse(gpu) if gpu else None
    regions, zone = planner.regions(region)
    found: list[Offer] = []
    unpriced: list[Offer] = []
    fitting: dict[str, list[Machine]] = {}
    only = {zone} if zone else set(planner.settings.zones) or None
    for name in regions:
        catalog = planner.catalog(name)
        for on_spot in (False, True) if spot is None else (spot,):
            wanted = MachineRequirements(gpu=request, spot=on_spot)
            machines = fitting[name] = market.fitting(catalog, wanted)
            choices = planner.choices(name, machines, spot=on_spot, zones=only)
            found += [_offer(planner, choice, count) for choice in choices]
            if not on_spot:
                priced = {choice.machine.name for choice in choices}
                others = [machine for machine in machines if machine.name not in priced]
                unpriced += _without_price(catalog, others, only)
    if found:
        return sorted([*found, *unpriced], key=attrgetter("price_to_sort_by"))
    if any(fitting.values()):
        raise planner.nowhere(fitting, bool(spot), only)
    near = _nearest(planner.catalog(regions[0]), MachineRequirements(gpu=request, spot=bool(spot)))
    return sorted(near, key=attrgetter("price_to_sort_by"))


def _offer(planner: Planner, choice: Choice, count: int) -> Offer:
    machine = choice.machine
    problem = _quota_problem(planner, choice, count)
    zones = ", ".join(choice.zones) if choice.spot else f"{len(choice.zones)} zones"
    note = problem or f"{machine.vcpus} vCPUs, {machine.memory_gb:g} GB; {zones}"
    found = _unavailable(machine, choice.region, choice.price, note)
    # Whether there is capacity is only known at the launch.
    return replace(found, available=not problem, spot=choice.spot)


def _unavailable(machine: Machine, region: str, price: float | None, note: str) -> Offer:
    """An offer of a machine on demand that cannot be launched."""
    return Offer(
        provider="aws",
        instance_type=machine.name,
        region=region,
        gpu=machine.gpu,
        gpus_per_node=machine.gpus,
        price_per_hour=price,
        available=False,
        note=note,
    )


def _quota_problem(planner: Planner, choice: Choice, count: int) -> str:
    quota = quotas.quota_of(choice.machine.name, choice.spot)
    if quota is None:
        return ""
    value = planner.catalog(choice.region).remembered(
        f"quota {quota.code}",
        _QUOTA_SECONDS,
        lambda: quotas.allowed(planner.clients, choice.region, quota),
    )
    need = count * choice.machine.vcpus
    if value is None or value >= need:
        return ""
    return f"quota {quota.code} allows {value:g} vCPUs, and {need} are needed"


def _without_price(
    catalog: Catalog, machines: Sequence[Machine], only: set[str] | None
) -> list[Offer]:
    """Offers on demand of machines without a known price, for which no plan can be made, if they are in these zones."""
    if not machines:
        return []
    offered = catalog.zones([machine.name for machine in machines])
    return [
        _unavailable(
            machine,
            catalog.region,
            None,
            f"no price is known: set '{machine.name}' = … under [aws.prices], in US dollars per hour",
        )
        for machine in machines
        if any(only is None or zone in only for zone in offered.get(machine.name, ()))
    ]


def _nearest(catalog: Catalog, wanted: MachineRequirements) -> list[Offer]:
    machines = nearest(catalog.machines(wanted), wanted)
    prices = _prices(catalog, machines)
    return [
        replace(_unavailable(m, catalog.region, prices.get(m.name), wanted.misfit(m)), fits=False)
        for m in machines
    ]


def _prices(catalog: Catalog, machines: Sequence[Machine]) -> dict[str, float]:
    try:
        return catalog.prices([machine.name for machine in machines])
    except FlowError:
        # These offers do not meet the request anyway.
        return {}
