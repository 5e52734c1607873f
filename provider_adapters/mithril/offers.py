"""`flow offers` for Mithril: what is available, and what was left out, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowlite.provider import Offer
from flowlite.spec.gpu import GpuRequest
from provider_adapters.mithril import markets as known
from provider_adapters.mithril.markets import MachineRequirements, Market


def offers_of(
    markets: Iterable[Market],
    gpu: str | None,
    count: int,
    *,
    spot: bool | None = None,
    region: str | None = None,
) -> list[Offer]:
    """Offers for a gang, the cheapest first; if nothing fits, the nearest ones with the reasons."""
    listed = list(markets)
    wish = MachineRequirements(
        GpuRequest.parse(gpu) if gpu else None, count, (region,) if region else ()
    )
    if spot is False:
        near = known.choose(listed, wish)
        return [
            _offer(m, "Mithril sells bids only, and has no on-demand price", fits=False)
            for m in near
        ]
    fitting = known.choose(listed, wish)
    if fitting:
        return [_fitting(m, count) for m in sorted(fitting, key=lambda market: market.price)]
    return [_offer(m, f"left out: {why}", fits=False) for m, why in known.nearest(listed, wish)]


def _fitting(market: Market, count: int) -> Offer:
    if market.capacity >= count:
        return _offer(market, f"{market.capacity} free")
    free = f"{market.capacity} free" if market.capacity else "none free"
    return _offer(
        market, f"{free}: a bid waits for the auction, or outbids others", available=False
    )


def _offer(market: Market, note: str, *, fits: bool = True, available: bool = True) -> Offer:
    return Offer(
        provider="mithril",
        instance_type=market.name,
        region=market.region,
        gpu=market.gpu if market.gpus else "",
        gpus_per_node=market.gpus,
        price_per_hour=market.price,
        available=available and fits,
        note=note,
        spot=True,
        fits=fits,
    )


def reserved(reservation: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """A reservation as a text: `team: 4 × h100 in us-central1-a until 2026-01-31, Active`."""
    kind = names.get(str(reservation["instance_type"]), str(reservation["instance_type"]))
    until = str(reservation["end_time"])[:10]
    return (
        f"{reservation['name']}: {reservation['instance_quantity']} × {kind} in {reservation.get('region') or '?'} "
        f"until {until}, {reservation['status']}"
    )
