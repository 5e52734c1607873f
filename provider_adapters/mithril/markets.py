"""Mithril's markets: one for each kind of machine in each region, with its price and free capacity."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import place
from flowlite.spec.gpu import GpuRequest, kind_named
from flowlite.state import clock
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import ApiRefused, MithrilApi
from provider_adapters.mithril.rest.response_format import understood

# Prices change with every auction, every two minutes.
_FRESH_SECONDS = 60.0
# GPUs in these sockets are connected by NVLink through switches.
_SOCKETS = {"nvlink": "sxm", "nvswitch": "sxm"}


@dataclass(frozen=True, slots=True)
class Market:
    """Machines of one kind in one region.

    Attributes:
        type_id: The API's id of the kind; a name may have several.
        price: US dollars per instance and hour in the last auction.
        capacity: Instances that are free; instances held for a lower price may become available, too.
        gpu: Canonical kind ("h100"), or the API's own name if no GPU string names it.
    """

    type_id: str
    name: str
    region: str
    price: float
    capacity: int
    gpu: str
    gpus: int
    gpu_memory_gb: int
    socket: str
    cpus: int
    memory_gb: float
    network: str = ""

    @property
    def what(self) -> str:
        """`8 × h100-80gb sxm5`."""
        if not self.gpus:
            return f"{self.cpus} cores"
        return f"{self.gpus} × {self.gpu}-{self.gpu_memory_gb}gb {self.socket.lower()}".rstrip()


@dataclass(frozen=True, slots=True)
class MachineRequirements:
    """The requirements for machines."""

    gpu: GpuRequest | None = None
    count: int = 1
    regions: tuple[str, ...] = ()
    cpu: float | None = None
    memory_gb: float | None = None
    socket: str = ""
    network: str = ""


def misfit(market: Market, wish: MachineRequirements) -> str:
    """Why machines of a market are unsuitable, or "". Whether enough are free is not considered."""
    problem = _gpu_misfit(market, wish.gpu) if wish.gpu else ""
    if problem:
        return problem
    if wish.regions and market.region not in wish.regions:
        return f"is in {market.region}, not in {' or '.join(wish.regions)}"
    if wish.cpu and market.cpus < wish.cpu:
        return f"has {market.cpus} cores, not {wish.cpu:g}"
    if wish.memory_gb and market.memory_gb < wish.memory_gb:
        return f"has {market.memory_gb:g} GB of memory, not {wish.memory_gb:g}"
    socket = _SOCKETS.get(wish.socket.lower(), wish.socket.lower())
    if socket and not market.socket.lower().startswith(socket):
        return f"has {market.socket or 'no socket'} between its GPUs, not {wish.socket}"
    if wish.network.lower() not in ("", "ethernet", market.network.lower()):
        return f"has {market.network or 'plain Ethernet'} between nodes, not {wish.network}"
    return ""


def _gpu_misfit(market: Market, asked: GpuRequest) -> str:
    if market.gpu != asked.kind:
        return f"has {market.what}"
    if market.gpus != asked.count:
        return (
            f"has {market.gpus} GPUs, and {asked.count} were asked for; machines are rented whole"
        )
    if asked.memory_gb is not None and market.gpu_memory_gb != asked.memory_gb:
        return f"its GPUs have {market.gpu_memory_gb} GB, not {asked.memory_gb}"
    if asked.socket is not None and not market.socket.lower().startswith(asked.socket):
        return f"its GPUs have the socket {market.socket or '?'}, not {asked.socket}"
    return ""


def choose(markets: Iterable[Market], wish: MachineRequirements) -> list[Market]:
    """Suitable markets: those with enough free machines first, then the cheapest."""
    fitting = [market for market in markets if not misfit(market, wish)]
    return sorted(fitting, key=lambda m: (m.capacity < wish.count, m.price, m.region, m.type_id))


def nearest(
    markets: Iterable[Market], wish: MachineRequirements, most: int = 8
) -> list[tuple[Market, str]]:
    """Unsuitable markets, the most similar first, each with the reason."""
    found = [(market, problem) for market in markets if (problem := misfit(market, wish))]
    return sorted(found, key=lambda pair: _distance(pair[0], wish))[:most]


def _distance(market: Market, wish: MachineRequirements) -> tuple[bool, bool, int, float]:
    gpu = wish.gpu
    return (
        bool(gpu) and market.gpu != gpu.kind if gpu else False,
        bool(wish.regions) and market.region not in wish.regions,
        abs(market.gpus - gpu.count) if gpu else 0,
        market.price,
    )


# Queries


class Catalogue:
    """The markets, cached in a file for a minute.

    Args:
        url: URL of the API.
        api: Returns its client, which takes a moment to load.
    """

    def __init__(self, url: str, api: Callable[[], MithrilApi], file: Path) -> None:
        self._url = url
        self._api = api
        self._file = file

    def markets(self, fresh: float = _FRESH_SECONDS) -> list[Market]:
        """All markets. Raises ProviderError."""
        known = self._read(fresh)
        if known is None:
            api = self._api()
            known = markets_of(api.get("/v2/instance-types"), api.get("/v2/spot/availability"))
            self._keep(known)
        return known

    def _read(self, fresh: float) -> list[Market] | None:
        try:
            kept = json.loads(self._file.read_bytes())
            if kept["url"] != self._url or not 0 <= clock.wall() - kept["at"] < fresh:
                return None
            return [Market(**each) for each in kept["markets"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, markets: Sequence[Market]) -> None:
        kept = {"url": self._url, "at": clock.wall(), "markets": [asdict(m) for m in markets]}
        # Without the cache only time is lost.
        with suppress(OSError):
            place(json.dumps(kept).encode(), str(self._file))


def markets_of(
    types: Iterable[Mapping[str, Any]], auctions: Iterable[Mapping[str, Any]]
) -> list[Market]:
    """The markets, from the API's lists of instance types and auctions."""
    by_id = {str(each["fid"]): each for each in types}
    found = []
    for auction in auctions:
        kind = by_id.get(str(auction.get("instance_type")))
        price = requests.read_dollars(auction.get("last_instance_price"))
        if kind is None or price is None:
            continue
        # A kind that flowlite cannot read, as one without GPUs may be, takes none of the others away.
        with suppress(KeyError, TypeError, ValueError):
            found.append(_market(kind, auction, price))
    return found


def _market(kind: Mapping[str, Any], auction: Mapping[str, Any], price: float) -> Market:
    return Market(
        type_id=str(kind["fid"]),
        name=str(kind["name"]),
        region=str(auction["region"]),
        price=price,
        capacity=int(auction["capacity"]),
        gpu=kind_named(str(kind["gpu_type"])) or str(kind["gpu_type"]).lower(),
        gpus=int(kind["num_gpus"]),
        gpu_memory_gb=int(kind["gpu_memory_gb"]),
        socket=str(kind["gpu_socket"] or ""),
        cpus=int(kind["num_cpus"]),
        memory_gb=float(kind["ram_gb"]),
        network=str(kind.get("network_type") or ""),
    )


@dataclass(frozen=True, slots=True)
class Price:
    """The present price of a gang, in US dollars per instance and hour.

    Attributes:
        now: The price of the last auction, or the market's minimum if that is higher.
        least: The lowest permitted bid.
    """

    now: float
    least: float


def price_now(api: MithrilApi, market: Market, count: int) -> Price:
    """The present price for `count` machines, or that of the market's list if it is not told. Raises ProviderError."""
    query = requests.price_of(market.type_id, market.region, count)
    try:
        answer = api.get("/v2/pricing/current", query)
    except ApiRefused:
        # It does not price so many machines, for example. A bid says by itself what is wrong with it.
        answer = {}
    return read_price(answer, market.price)


@understood("the present price")
def read_price(answer: Mapping[str, Any], otherwise: float) -> Price:
    """The price in an answer of the API; `otherwise` if it has none."""
    cents = {key: answer.get(key) for key in ("spot_price_cents", "minimum_price_cents")}
    spot, least = (None if value is None else int(value) / 100 for value in cents.values())
    least = least or 0.0
    return Price(max(otherwise if spot is None else spot, least), least)
