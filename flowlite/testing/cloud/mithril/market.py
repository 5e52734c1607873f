"""The auctions: which bids win machines, at which price, and which lose them."""

from __future__ import annotations

import math

from flowlite.state import clock
from flowlite.testing.cloud.mithril.fleet import Fleet
from flowlite.testing.cloud.mithril.records import Bid, Instance
from flowlite.testing.cloud.mithril.world import Auction, World


class Market:
    """Holds the auctions at intervals. Its methods are called with the world's lock held."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._schedule()

    def _schedule(self) -> None:
        self._world.timer.after(self._world.rules.auction_seconds, self._periodic)

    def _periodic(self) -> None:
        try:
            with self._world.lock:
                self.hold_all()
        finally:
            self._schedule()

    def hold_all(self) -> None:
        """Holds every auction once."""
        for auction in self._world.auctions.values():
            self._hold(auction)

    def _hold(self, auction: Auction) -> None:
        fid = auction.instance_type.fid
        bids = [
            b
            for b in self._world.bids.values()
            if b.instance_type == fid and b.status in ("Open", "Allocated", "Preempting")
        ]
        bids.sort(key=lambda bid: (-bid.limit_cents, bid.created_at))
        free, outbid, least = auction.capacity, 0, None
        winners, losers = [], []
        now = clock.monotonic()
        for bid in bids:
            barred = now < bid.barred_until
            if not barred and bid.limit_cents >= auction.price_cents and bid.quantity <= free:
                free -= bid.quantity
                winners.append(bid)
                least = bid.limit_cents
            else:
                losers.append(bid)
                if not barred:
                    outbid = max(outbid, bid.limit_cents)
        # Winners pay the highest losing bid, but no more than the lowest winning limit.
        price = max(auction.price_cents, min(outbid, least) if least is not None else 0)
        self._set_clearing(auction, price)
        for bid in losers:
            if bid.status == "Allocated":
                self.preempt(bid, self._world.rules.notice_seconds)
        for bid in winners:
            self._wins(bid, auction)

    def _wins(self, bid: Bid, auction: Auction) -> None:
        if bid.status == "Preempting":
            bid.status = "Allocated"
            for instance in self._world.instances_of(bid):
                if instance.status == "STATUS_PREEMPTING":
                    self._fleet.withdraw(instance)
            bid.happened("Allocated")
        elif (
            bid.status == "Open"
            and self._world.held(auction) + bid.quantity <= auction.capacity
            and not self._world.instances_of(bid)
        ):
            self._retire(bid)
            bid.status = "Allocated"
            bid.happened("Allocated")
            self._fleet.launch(bid)
        bid.keep()

    def _retire(self, bid: Bid) -> None:
        for fid in bid.instances:
            instance = self._world.instances[fid]
            if instance.status == "STATUS_PAUSED":
                instance.becomes("STATUS_TERMINATED")

    def _set_clearing(self, auction: Auction, cents: int) -> None:
        if cents == auction.clearing_cents:
            return
        auction.clearing_cents = cents
        auction.history.append((clock.wall(), cents))
        for instance in self._world.instances.values():
            charged = instance.periods and instance.periods[-1][2] is None
            if charged and instance.instance_type == auction.instance_type.fid:
                instance.charge(cents)

    def set_price(self, auction: Auction, cents: int) -> None:
        """Sets what others bid. It counts from the next auction on."""
        auction.price_cents = cents

    def preempt(self, bid: Bid, seconds: float, again_after: float | None = None) -> None:
        """Announces to all machines of a bid that they will be taken away after `seconds`.

        Args:
            again_after: For how many seconds after that it cannot win. None: it can win all the time, also during the
                notice, which is then withdrawn.
        """
        if again_after is not None:
            # Not for a time: on a busy machine an auction may be late, and the loss of the machines even later.
            bid.barred_until = math.inf
        bid.status = "Preempting"
        bid.happened("Preempted")
        bid.keep()
        ends = clock.wall() + seconds
        for instance in self._world.instances_of(bid):
            if instance.status != "STATUS_STOPPING":
                self._fleet.announce(instance, "STATUS_PREEMPTING", ends)

        def over() -> None:
            with self._world.lock:
                # The bid may have won again, ended, or been given a later notice.
                if again_after is not None:
                    bid.barred_until = clock.monotonic() + again_after
                mine = [i for i in self._world.instances_of(bid) if i.status == "STATUS_PREEMPTING"]
                if bid.status != "Preempting" or any((i.end_time or 0) > ends for i in mine):
                    return
                self._give_back(bid, "STATUS_PREEMPTED")
                bid.status = "Open"
                bid.keep()

        self._world.timer.after(seconds, over)

    def relocate(self, instance: Instance, seconds: float) -> None:
        """Announces to a machine that another one replaces it after `seconds`."""
        bid = self._world.bids[instance.bid or ""]
        self._fleet.announce(instance, "STATUS_RELOCATING", clock.wall() + seconds)

        def over() -> None:
            with self._world.lock:
                if instance.status == "STATUS_RELOCATING" and bid.status == "Allocated":
                    self._fleet.relocate(bid, instance)

        self._world.timer.after(seconds, over)

    def pause(self, bid: Bid) -> None:
        """Takes a bid's machines away and keeps it from winning until it is resumed."""
        bid.status = "Paused"
        bid.happened("Paused")
        self._give_back(bid, "STATUS_PAUSED")
        bid.keep()

    def resume(self, bid: Bid) -> None:
        """Lets a paused bid win again."""
        bid.status = "Open"
        bid.happened("Resumed")
        bid.keep()

    def cancel(self, bid: Bid) -> None:
        """Ends a bid and its machines, and with them its cost."""
        bid.status = "Terminated"
        bid.deactivated_at = clock.wall()
        bid.happened("Terminated")
        self._give_back(bid, "STATUS_TERMINATED")
        self._retire(bid)
        for fid in bid.specification["volumes"]:
            volume = self._world.volumes[fid]
            volume.bids = [each for each in volume.bids if each != bid.fid]
            volume.keep()
        bid.keep()

    def _give_back(self, bid: Bid, status: str) -> None:
        for instance in self._world.instances_of(bid):
            self._fleet.end(instance, status)
        self._fleet.detach(bid)
