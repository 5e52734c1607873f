"""What a test can have the cloud do: prices, capacity, preemption, broken machines, odd starts, expired keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from flowlite.state import clock
from flowlite.testing.cloud.mithril import books
from flowlite.testing.cloud.mithril.fleet import BOOTS, Fleet
from flowlite.testing.cloud.mithril.ground import Ground
from flowlite.testing.cloud.mithril.market import Market
from flowlite.testing.cloud.mithril.records import STATUSES, Bid, Instance
from flowlite.testing.cloud.mithril.world import Auction, Rules, World


class Obeying(ABC):
    """The orders. Every method takes and gives what JSON can hold."""

    world: World
    fleet: Fleet
    market: Market
    _ground: Ground
    _capacity: int
    _first_rules: Rules

    @abstractmethod
    def _begin(self, rules: Rules) -> None:
        """A new world."""

    @abstractmethod
    def close(self) -> None:
        """Ends what works in the background."""

    def do_reset(self) -> None:
        """As on the first day, with the same account and key: no bid, no machine."""
        old = self.world
        self.close()
        for fid in old.instances:
            self._ground.end(fid)
        self._begin(replace(self._first_rules))
        with self.world.lock:
            self.world.api_keys.clear()
            self.world.account_key = old.account_key
            self.world.add(self.world.api_keys, old.account_key)

    def do_facts(self) -> dict[str, Any]:
        """What a client needs: the key, the project of its own, and one it may not use."""
        mine, others = self.world.projects.values()
        return {
            "api_key": self.world.account_key.secret,
            "project": mine.name,
            "project_fid": mine.fid,
            "foreign_project_fid": others.fid,
            "foreign_project": others.name,
        }

    def do_rules(self, **changes: Any) -> dict[str, Any]:
        """Changes some of the rules; gives them all."""
        known = {each.name for each in fields(Rules)}
        if strange := set(changes) - known:
            raise ValueError(f"there is no rule {sorted(strange)}; there are {sorted(known)}")
        with self.world.lock:
            self.world.rules = replace(self.world.rules, **changes)
            return asdict(self.world.rules)

    def do_lag(self, seconds: float) -> None:
        """Listings are so far behind."""
        self.do_rules(lag=seconds)

    def do_bids(self) -> list[dict[str, Any]]:
        """All bids as they are, whatever listings say; with `cost` in US dollars so far."""
        with self.world.lock:
            return [
                {**bid.model(), "id": bid.fid, "cost": sum(i.cost for i in self._ever(bid))}
                for bid in self.world.bids.values()
            ]

    def _ever(self, bid: Bid) -> list[Instance]:
        return [self.world.instances[fid] for fid in bid.instances]

    def do_instances(self) -> list[dict[str, Any]]:
        """All instances as they are, those that have ended included."""
        with self.world.lock:
            return [
                {
                    "id": each.fid,
                    "state": each.status,
                    "there": each.there,
                    "address": each.address or "",
                    "public_address": each.ssh_destination or "",
                    "name": each.name,
                    "bid": each.bid,
                    "machine": self._ground.place(each.fid),
                    "charged": bool(each.periods) and each.periods[-1][2] is None,
                    "cost": each.cost,
                }
                for each in self.world.instances.values()
            ]

    def do_bill(self) -> list[dict[str, Any]]:
        """What each instance has cost, by books of their own; see `books.bill`."""
        with self.world.lock:
            return books.bill(self.world.instances.values(), self.world.auctions, clock.wall())

    def do_volumes(self) -> list[dict[str, Any]]:
        """All volumes that are there."""
        with self.world.lock:
            found = self.world.volumes.values()
            return [each.model() for each in found if each.deleted_at is None]

    def do_api_keys(self) -> list[dict[str, Any]]:
        """All keys, with whether they still open anything."""
        with self.world.lock:
            return [{**key.model(), "good": key.good} for key in self.world.api_keys.values()]

    def do_console(self, id: str) -> str:
        """What a machine has printed."""
        return self._ground.console(id)

    def _auctions(self, type: str, region: str) -> list[Auction]:
        found = [
            each
            for each in self.world.auctions.values()
            if type in ("*", each.instance_type.name, each.instance_type.fid)
            and region in ("", each.instance_type.region)
        ]
        if not found:
            names = sorted({each.name for each in self.world.types.values()})
            raise ValueError(f"no auction for {type!r} in {region or 'any region'}; types: {names}")
        return found

    def do_price(self, type: str, dollars: float, region: str = "") -> None:
        """What others bid for an instance-hour of a type; the auctions are held at once."""
        with self.world.lock:
            for auction in self._auctions(type, region):
                auction.price_cents = round(dollars * 100)
            self.market.hold_all()

    def do_capacity(self, type: str, n: int | None, region: str = "") -> None:
        """How many machines of a type there are, None for as at first; the auctions are held at once."""
        with self.world.lock:
            for auction in self._auctions(type, region):
                auction.capacity = self._capacity if n is None else n
            self.market.hold_all()

    def do_quota(self, type: str, n: int, region: str = "") -> None:
        """How many machines of a type the project may have; "storage": GB of volumes."""
        with self.world.lock:
            if type == "storage":
                self.world.storage_quota_gb = n
                return
            for auction in self._auctions(type, region):
                self.world.quotas[auction.instance_type.fid] = n

    def do_preempt(self, ids: Sequence[str], seconds: float, again_after: float = 0.0) -> None:
        """Announces the end to the bids with these ids, or with these instances; they win again some time after."""
        with self.world.lock:
            wanted = {self._bid(each).fid: self._bid(each) for each in ids}
            for bid in wanted.values():
                if bid.status != "Allocated":
                    raise ValueError(f"{bid.fid} is {bid.status}, and has nothing to be taken away")
                self.market.bar(bid, seconds + again_after)
                self.market.preempt(bid, seconds)

    def _bid(self, id: str) -> Bid:
        instance = self.world.instances.get(id)
        return self.world.bids[instance.bid or "" if instance else id]

    def do_relocate(self, id: str, seconds: float) -> None:
        """Announces to an instance that another machine takes its place."""
        with self.world.lock:
            self.market.relocate(self.world.instances[id], seconds)

    def do_die(self, id: str, state: str = "STATUS_ERROR") -> None:
        """A machine is gone at once; the API says that state, or "STATUS_RUNNING" as if nothing had been."""
        if state not in STATUSES:
            raise ValueError(f"no status {state!r}; there are {sorted(STATUSES)}")
        with self.world.lock:
            self.fleet.die(self.world.instances[id], state)

    def do_odd_boots(self, how: str, times: int = 1) -> None:
        """The next machines "never" run; run "silent", with nobody answering; run and "die"; or end in "error".

        With 0 `times`, all start as they should from now on.
        """
        kinds = {"die": "dies"}
        if kinds.get(how, how) not in BOOTS:
            raise ValueError(f"no such start: {how!r}; there are {BOOTS}")
        with self.world.lock:
            if times == 0:
                self.fleet.odd_boots.clear()
            self.fleet.odd_boots.extend([kinds.get(how, how)] * times)

    def do_expire_key(self, name: str = "account", seconds: float = 0.0) -> None:
        """The keys of that name open nothing after so many seconds; negative: they never did."""
        with self.world.lock:
            for key in self.world.api_keys.values():
                if key.name == name:
                    key.expires_at = clock.wall() + seconds
                    key.keep()

    def do_new_key(self, name: str, seconds: float) -> str:
        """The secret of a new key."""
        with self.world.lock:
            return self.world.new_api_key(name, clock.wall() + seconds).secret

    def do_auction(self) -> None:
        """Every auction, now."""
        with self.world.lock:
            self.market.hold_all()
