"""The operations on types, auctions and prices."""

from __future__ import annotations

from typing import Any

from flowlite.testing.cloud.mithril import catalog
from flowlite.testing.cloud.mithril.errors import missing
from flowlite.testing.cloud.mithril.forms import money, stamp
from flowlite.testing.cloud.mithril.request import Request
from flowlite.testing.cloud.mithril.world import Auction, World


class Prices:
    """Operations. Call them with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_instance_types(self, request: Request) -> tuple[int, Any]:
        """All types, with one entry per region."""
        return 200, [each.model() for each in self._world.types.values()]

    def get_reservation_instance_types(self, request: Request) -> tuple[int, Any]:
        """All types, since each can be reserved."""
        return self.get_instance_types(request)

    def get_auctions(self, request: Request) -> tuple[int, Any]:
        """All auctions with their last price."""
        return 200, [self._auction(each) for each in self._world.auctions.values()]

    def _auction(self, auction: Auction) -> dict[str, Any]:
        least = self._lowest_allocated(auction)
        return {
            "fid": auction.fid,
            "instance_type": auction.instance_type.fid,
            "region": auction.instance_type.region,
            "capacity": self._free(auction),
            "last_instance_price": money(auction.clearing_cents),
            "lowest_allocated_price": None if least is None else money(least),
            "adjustable_memory": False,
            "default_image_version": catalog.IMAGE,
        }

    def _free(self, auction: Auction) -> int:
        return max(0, auction.capacity - self._world.held(auction))

    def _lowest_allocated(self, auction: Auction) -> int | None:
        fid = auction.instance_type.fid
        bids = self._world.bids.values()
        return min(
            (b.limit_cents for b in bids if b.instance_type == fid and b.status == "Allocated"),
            default=None,
        )

    def get_current_prices(self, request: Request) -> tuple[int, Any]:
        """The current price of a type."""
        fid = request.query["instance_type"]
        auction = self._world.auctions.get(fid)
        region = request.query.get("region")
        if auction is None or region not in (None, auction.instance_type.region):
            raise missing("Instance type")
        return 200, {
            "spot_price_cents": auction.clearing_cents,
            "reserved_price_cents": auction.instance_type.spot_cents * 2,
            "minimum_price_cents": auction.instance_type.least_cents,
            "lowest_allocated_bid_cents": self._lowest_allocated(auction),
            "dynamic_win_price_cents": auction.clearing_cents,
            "available_capacity": self._free(auction),
            "total_capacity": auction.capacity,
        }

    def get_historical_prices(self, request: Request) -> tuple[int, Any]:
        """The price history of a type."""
        given = request.query.get("instance_types", "")
        wanted = [each for each in given.split(",") if each] or list(self._world.auctions)
        samples = request.query.get("num_samples", 100)
        region = request.query.get("region")
        found = [self._world.auctions[fid] for fid in wanted if fid in self._world.auctions]
        series = []
        for auction in found:
            if region not in (None, auction.instance_type.region):
                continue
            rows = auction.history[-samples:] if samples > 0 else auction.history
            reserved = money(auction.instance_type.spot_cents * 2)
            series.append(
                {
                    "instance_type": auction.instance_type.fid,
                    "region": auction.instance_type.region,
                    "timestamps": [stamp(when) for when, _ in rows],
                    "spot_prices": [money(cents) for _, cents in rows],
                    "reserved_prices": [reserved for _ in rows],
                    "region_disabled": False,
                }
            )
        return 200, {"series": series, "complete": True, "show_disabled_regions": False}

    def get_image_versions(self, request: Request) -> tuple[int, Any]:
        """The images."""
        return 200, [catalog.image_model()]

    def get_cpu_instance_types(self, request: Request) -> tuple[int, Any]:
        """Always empty: machines without GPUs are not offered."""
        return 200, []

    def get_cpu_regions(self, request: Request) -> tuple[int, Any]:
        """The regions, but for one: the API lists only those with machines without GPUs."""
        return 200, [catalog.region_model(each) for each in catalog.REGIONS[:-1]]
