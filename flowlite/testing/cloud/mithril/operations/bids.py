"""The operations on spot bids."""

from __future__ import annotations

from typing import Any

from flowlite.testing.cloud.mithril.errors import Refused, business, invalid, missing
from flowlite.testing.cloud.mithril.forms import money, new_fid
from flowlite.testing.cloud.mithril.market import Market
from flowlite.testing.cloud.mithril.records import Bid
from flowlite.testing.cloud.mithril.request import Request, page
from flowlite.testing.cloud.mithril.shapes import Problem
from flowlite.testing.cloud.mithril.world import USER, World

LONGEST_SCRIPT = 10_000
_SORTING = {"created_at": "created_at", "status": "status"}


class Bids:
    """Operations. Call them with the world's lock held."""

    def __init__(self, world: World, market: Market) -> None:
        self._world = world
        self._market = market

    def get_bids(self, request: Request) -> tuple[int, Any]:
        """The bids of a project, or of all projects."""
        if project := request.query.get("project"):
            self._world.project_of(project)
        wanted: dict[str, str] = {
            name: request.query[name]
            for name in ("project", "instance_type", "region", "name", "status")
            if name in request.query
        }
        found = [
            bid
            for bid in self._world.listed(self._world.bids)
            if all(bid[name] == value for name, value in wanted.items())
        ]
        return 200, page(request, found, _SORTING, self._world.rules.page_size)

    def create_bid(self, request: Request) -> tuple[int, Any]:
        """Places a bid, which is open until the next auction."""
        project = request.body["project"]
        region = request.body["region"]
        instance_type = request.body["instance_type"]
        cents = request.price("limit_price")
        quantity = request.body["instance_quantity"]
        name = request.body["name"]
        specification = _specification(request.body["launch_specification"])
        if quantity < 1:
            request.wrong("instance_quantity", "Input should be greater than 0", "greater_than")
        if not name.strip():
            request.wrong("name", "String should have at least 1 character", "string_too_short")
        request.checked()
        self._world.project_of(project)
        if again := self._repeated(request):
            return 201, again.model()
        bid = Bid(
            fid=new_fid("bid"),
            name=name,
            project=project,
            created_by=USER,
            limit_cents=cents,
            quantity=quantity,
            instance_type=instance_type,
            region=region,
            specification=specification,
        )
        self._accept(bid)
        self._world.add(self._world.bids, bid)
        bid.happened("Placed", limit_price=money(cents))
        if key := request.headers.get("idempotency-key"):
            self._world.bids_by_idempotency_key[key] = bid.fid
        for fid in specification["volumes"]:
            volume = self._world.volumes[fid]
            volume.bids.append(bid.fid)
            volume.keep()
        return 201, bid.model()

    def _repeated(self, request: Request) -> Bid | None:
        key = request.headers.get("idempotency-key", "")
        if not self._world.rules.honours_idempotency_keys:
            return None
        return self._world.bids.get(self._world.bids_by_idempotency_key.get(key, ""))

    def _accept(self, bid: Bid) -> None:
        """Raises Refused if the bid breaks a rule."""
        world = self._world
        auction = world.auction_of(bid.instance_type, bid.region)
        least = auction.instance_type.least_cents
        if bid.limit_cents < least:
            raise business(f"Limit price below minimum: it must be at least {money(least)}")
        if len(bid.specification["startup_script"] or "") > LONGEST_SCRIPT:
            raise business(f"Startup script exceeds the limit of {LONGEST_SCRIPT} characters")
        live = [
            b for b in world.bids.values() if b.project == bid.project and b.status != "Terminated"
        ]
        if world.rules.unique_names and any(each.name == bid.name for each in live):
            raise business(f"Name already used by another bid: {bid.name}")
        self._check_keys(bid)
        self._check_volumes(bid)
        quota = world.quotas.get(bid.instance_type)
        used = sum(each.quantity for each in live if each.instance_type == bid.instance_type)
        if quota is not None and used + bid.quantity > quota:
            raise business(
                f"Spot quota exceeded for {auction.instance_type.name} in {bid.region}: "
                f"{used} of {quota} instances are in use, {bid.quantity} more were requested"
            )

    def _check_keys(self, bid: Bid) -> None:
        keys = self._world.ssh_keys
        mine = {fid for fid, key in keys.items() if key.project == bid.project}
        if unknown := [fid for fid in bid.specification["ssh_keys"] if fid not in mine]:
            raise business(f"SSH key {unknown[0]} not found in project")
        required = [fid for fid in mine if keys[fid].required]
        bid.specification["ssh_keys"] = list(
            dict.fromkeys([*bid.specification["ssh_keys"], *required])
        )
        if not bid.specification["ssh_keys"]:
            raise business("No SSH keys: at least one SSH key is required")

    def _check_volumes(self, bid: Bid) -> None:
        for fid in bid.specification["volumes"]:
            volume = self._world.volumes.get(fid)
            if volume is None or volume.deleted_at is not None or volume.project != bid.project:
                raise business(f"Volume {fid} not found")
            if volume.region != bid.region:
                raise business(
                    f"Volume {volume.name} is in region {volume.region}, not {bid.region}"
                )
            if volume.interface == "File":
                continue
            if bid.quantity > 1:
                raise business(f"Block volume {volume.name} can be attached to one instance only")
            if [other for other in volume.bids if other != bid.fid]:
                raise business(f"Block volume {volume.name} is already attached")

    def _bid(self, request: Request) -> Bid:
        bid = self._world.bids.get(request.path["bid_fid"])
        if bid is None:
            raise missing("Bid")
        self._world.project_of(bid.project)
        return bid

    def get_bid(self, request: Request) -> tuple[int, Any]:
        """The current state of a bid."""
        return 200, self._bid(request).model()

    def update_bid(self, request: Request) -> tuple[int, Any]:
        """Changes the price or the volumes of a bid, or pauses or resumes it."""
        cents = request.price("limit_price")
        paused = request.body.get("paused")
        volumes = request.body.get("volumes")
        request.checked()
        bid = self._bid(request)
        if bid.status == "Terminated":
            raise business("Bid is terminated")
        if paused is not None and bid.status == "Preempting":
            raise business("Bid is being preempted")
        if cents is not None:
            self._reprice(bid, cents)
        if volumes is not None:
            self._change_volumes(bid, volumes)
        if paused is True and bid.status != "Paused":
            self._market.pause(bid)
        elif paused is False and bid.status == "Paused":
            self._market.resume(bid)
        bid.keep()
        return 200, bid.model()

    def _reprice(self, bid: Bid, cents: int) -> None:
        least = self._world.types[bid.instance_type].least_cents
        if cents < least:
            raise business(f"Limit price below minimum: it must be at least {money(least)}")
        bid.limit_cents = cents
        bid.happened("Limit Price Changed", limit_price=money(cents))

    def _change_volumes(self, bid: Bid, volumes: list[str]) -> None:
        if bid.status != "Paused":
            raise business("Volumes can only be changed while the bid is paused")
        before = list(bid.specification["volumes"])
        bid.specification["volumes"] = volumes
        try:
            self._check_volumes(bid)
        except Refused:
            bid.specification["volumes"] = before
            raise
        for fid in {*before, *volumes}:
            volume = self._world.volumes[fid]
            volume.bids = [each for each in volume.bids if each != bid.fid]
            volume.bids += [bid.fid] if fid in volumes else []
            volume.keep()
        for what, fids in (("attached", volumes), ("removed", before)):
            other = before if what == "attached" else volumes
            for fid in fids:
                if fid not in other:
                    event = "Volumes Attached" if what == "attached" else "Volumes Removed"
                    bid.happened(event, persistent_disk_change={what: fid})

    def cancel_bid(self, request: Request) -> tuple[int, Any]:
        """Ends a bid and its machines."""
        bid = self._bid(request)
        if bid.status == "Terminated":
            raise invalid(Problem(("path", "bid_fid"), "Bid is already terminated", "value_error"))
        self._market.cancel(bid)
        return 204, None

    def get_bid_status(self, request: Request) -> tuple[int, Any]:
        """The status of a bid, with the more detailed one."""
        bid = self._bid(request)
        moving = any(i.status == "STATUS_RELOCATING" for i in self._world.instances_of(bid))
        return 200, {"bid_fid": bid.fid, "status": "Relocating" if moving else bid.status}

    def get_bid_history(self, request: Request) -> tuple[int, Any]:
        """The events of a bid."""
        bid = self._bid(request)
        return 200, {"bid_fid": bid.fid, "events": list(bid.events)}


def _specification(given: dict[str, Any]) -> dict[str, Any]:
    optional = ("startup_script", "kubernetes_cluster", "image_version", "memory_gb")
    lists = {name: list(given[name]) for name in ("volumes", "ssh_keys")}
    return {**lists, **{name: given.get(name) for name in optional}}
