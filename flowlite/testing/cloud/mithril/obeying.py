"""The operations by which tests control the cloud: prices, capacity, preemption, failures, boots, keys."""

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
    """The control operations. Their arguments and results are valid JSON."""

    world: World
    fleet: Fleet
    market: Market
    _ground: Ground
    _capacity: int
    _first_rules: Rules

    @abstractmethod
    def _begin(self, rules: Rules) -> None:
        """Creates a new world."""

    @abstractmethod
    def close(self) -> None:
        """Ends the background threads."""

    def do_reset(self) -> None:
        """Removes all bids and machines. The account and its key stay; the key is as good as on its first day."""
        old = self.world
        self.close()
        for fid in old.instances:
            self._ground.end(fid)
        self._begin(replace(self._first_rules))
        with self.world.lock:
            self.world.api_keys.clear()
            # On a simulated clock, years may have passed.
            old.account_key.expires_at = self.world.account_key.expires_at
            self.world.account_key = old.account_key
            self.world.add(self.world.api_keys, old.account_key)

    def do_facts(self) -> dict[str, Any]:
        """The key, the project of the client, and one that it may not use."""
        mine, others = self.world.projects.values()
        return {
            "api_key": self.world.account_key.secret,
            "project": mine.name,
            "project_fid": mine.fid,
            "foreign_project_fid": others.fid,
            "foreign_project": others.name,
        }

    def do_rules(self, **changes: Any) -> dict[str, Any]:
        """Changes some of the rules, and returns all of them."""
        known = {each.name for each in fields(Rules)}
        if strange := set(changes) - known:
            raise ValueError(f"there is no rule {sorted(strange)}; there are {sorted(known)}")
        with self.world.lock:
            self.world.rules = replace(self.world.rules, **changes)
            return asdict(self.world.rules)

    def do_lag(self, seconds: float) -> None:
        """Makes listings lag."""
        self.do_rules(lag=seconds)

    def do_bids(self) -> list[dict[str, Any]]:
        """All bids, regardless of lag, with `cost` in US dollars so far."""
        with self.world.lock:
            return [
                {**bid.model(), "id": bid.fid, "cost": sum(i.cost for i in self._ever(bid))}
                for bid in self.world.bids.values()
            ]

    def _ever(self, bid: Bid) -> list[Instance]:
        return [self.world.instances[fid] for fid in bid.instances]

    def do_instances(self) -> list[dict[str, Any]]:
        """All instances, regardless of lag, including those that have ended."""
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
        """The independently computed cost of each instance; see `books.bill`."""
        with self.world.lock:
            return books.bill(self.world.instances.values(), self.world.auctions, clock.wall())

    def do_volume_bill(self) -> list[dict[str, Any]]:
        """The independently computed cost of each volume; see `books.volume_bill`."""
        with self.world.lock:
            return books.volume_bill(self.world.volumes.values(), clock.wall())

    def do_volumes(self) -> list[dict[str, Any]]:
        """All volumes."""
        with self.world.lock:
            found = self.world.volumes.values()
            return [each.model() for each in found if each.deleted_at is None]

    def do_api_keys(self) -> list[dict[str, Any]]:
        """All keys, with whether they are still valid."""
        with self.world.lock:
            return [{**key.model(), "good": key.good} for key in self.world.api_keys.values()]

    def do_console(self, id: str) -> str:
        """The console output of a machine."""
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
        """Sets what others bid per instance-hour of a type, and holds the auctions."""
        with self.world.lock:
            for auction in self._auctions(type, region):
                auction.price_cents = round(dollars * 100)
            self.market.hold_all()

    def do_capacity(self, type: str, n: int | None, region: str = "") -> None:
        """Sets how many machines of a type exist (None: as at first), and holds the auctions."""
        with self.world.lock:
            for auction in self._auctions(type, region):
                auction.capacity = self._capacity if n is None else n
            self.market.hold_all()

    def do_quota(self, type: str, n: int, region: str = "") -> None:
        """Sets how many machines of a type the project may have; for "storage", GB of volumes."""
        with self.world.lock:
            if type == "storage":
                self.world.storage_quota_gb = n
                return
            for auction in self._auctions(type, region):
                self.world.quotas[auction.instance_type.fid] = n

    def do_preempt(self, ids: Sequence[str], seconds: float, again_after: float = 0.0) -> None:
        """Preempts bids, given by their ids or those of instances. They can win again `again_after` seconds later."""
        with self.world.lock:
            wanted = {self._bid(each).fid: self._bid(each) for each in ids}
            for bid in wanted.values():
                if bid.status != "Allocated":
                    raise ValueError(f"{bid.fid} is {bid.status}, and has nothing to be taken away")
                self.market.preempt(bid, seconds, again_after)

    def _bid(self, id: str) -> Bid:
        instance = self.world.instances.get(id)
        return self.world.bids[instance.bid or "" if instance else id]

    def do_relocate(self, id: str, seconds: float) -> None:
        """Announces to an instance that another machine replaces it."""
        with self.world.lock:
            self.market.relocate(self.world.instances[id], seconds)

    def do_die(self, id: str, state: str = "STATUS_ERROR") -> None:
        """Ends a machine at once. The API shows `state`; "STATUS_RUNNING" if Mithril has not noticed."""
        if state not in STATUSES:
            raise ValueError(f"no status {state!r}; there are {sorted(STATUSES)}")
        with self.world.lock:
            self.fleet.die(self.world.instances[id], state)

    def do_odd_boots(self, how: str, times: int = 1) -> None:
        """Sets that the next machines "never" run; run "silent", without an sshd; run and "die"; or end in "error".

        With `times` 0, all machines start normally from now on.
        """
        kinds = {"die": "dies"}
        if kinds.get(how, how) not in BOOTS:
            raise ValueError(f"no such start: {how!r}; there are {BOOTS}")
        with self.world.lock:
            if times == 0:
                self.fleet.odd_boots.clear()
            self.fleet.odd_boots.extend([kinds.get(how, how)] * times)

    def do_expire_key(self, name: str = "account", seconds: float = 0.0) -> None:
        """Makes the keys with that name expire after `seconds`. Negative: in the past."""
        with self.world.lock:
            for key in self.world.api_keys.values():
                if key.name == name:
                    key.expires_at = clock.wall() + seconds
                    key.keep()

    def do_new_key(self, name: str, seconds: float) -> str:
        """Creates a key and returns its secret."""
        with self.world.lock:
            return self.world.new_api_key(name, clock.wall() + seconds).secret

    def do_auction(self) -> None:
        """Holds every auction now."""
        with self.world.lock:
            self.market.hold_all()
