"""All that the cloud knows, under one lock."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flowlite.state import clock
from flowlite.testing.cloud.mithril import catalog
from flowlite.testing.cloud.mithril.catalog import InstanceType
from flowlite.testing.cloud.mithril.errors import business, forbidden
from flowlite.testing.cloud.mithril.forms import fixed_fid, new_fid, stamp
from flowlite.testing.cloud.mithril.ground import Ground
from flowlite.testing.cloud.mithril.records import (
    ApiKey,
    Bid,
    Instance,
    Kept,
    Reservation,
    SshKey,
    Volume,
)
from flowlite.testing.cloud.mithril.timer import Background

Record = TypeVar("Record", bound=Kept)

USER = fixed_fid("user", "tester")
ORGANIZATION = "6f1c7f2e-0000-4000-8000-000000000001"
_YEAR = 365 * 24 * 3600.0


@dataclass
class Rules:
    """How the cloud behaves; a test may change it at any time.

    Attributes:
        auction_seconds: Time between two auctions; the real ones are two minutes apart.
        notice_seconds: Time between the announcement that machines are taken away and that; the real one is 5 minutes.
        boot_seconds: Time from the allocation until a machine runs.
        stop_seconds: Time from the request until a machine is gone.
        unique_names: Whether a live bid's name is refused to another one.
        honours_idempotency_keys: Whether a second POST with the same Idempotency-Key gives the first one's bid.
        page_size: Entries on a page when the request does not say.
        lag: Seconds by which listings are behind.
    """

    auction_seconds: float = 0.3
    notice_seconds: float = 10.0
    boot_seconds: float = 0.5
    stop_seconds: float = 0.1
    unique_names: bool = True
    honours_idempotency_keys: bool = False
    page_size: int = 20
    lag: float = 0.0


@dataclass(eq=False)
class Auction:
    """Where one type of one region is sold.

    Attributes:
        capacity: Machines that can be had, those that are had already included.
        price_cents: What others bid; who wants to win bids as much.
        clearing_cents: What the winners pay.
        history: Unix times with the price since then.
    """

    instance_type: InstanceType
    capacity: int
    price_cents: int
    clearing_cents: int
    history: list[tuple[float, int]] = field(default_factory=list)

    @property
    def fid(self) -> str:
        """Its id."""
        return fixed_fid("auc", self.instance_type.name, self.instance_type.region)


@dataclass(frozen=True)
class Project:
    """A project of the organization; `member`: whether the test's user is in it."""

    fid: str
    name: str
    member: bool = True
    created_at: float = field(default_factory=clock.wall)

    def model(self) -> dict[str, Any]:
        """As the API shows it."""
        return {"fid": self.fid, "name": self.name, "created_at": stamp(self.created_at)}


class World:
    """The state. Whoever reads or changes it holds `lock`; whoever changes a record calls its `keep`."""

    def __init__(self, ground: Ground, rules: Rules, capacity: int, background: Background) -> None:
        self.lock = threading.RLock()
        self.ground = ground
        self.rules = rules
        self.timer = background.timer()
        self.types = {each.fid: each for each in catalog.instance_types()}
        now = clock.wall()
        self.auctions = {
            fid: Auction(each, capacity, each.spot_cents, each.spot_cents, [(now, each.spot_cents)])
            for fid, each in self.types.items()
        }
        projects = (
            Project(fixed_fid("proj", "flowlite"), "flowlite"),
            Project(fixed_fid("proj", "others"), "others", member=False),
        )
        self.projects = {each.fid: each for each in projects}
        self.api_keys: dict[str, ApiKey] = {}
        self.ssh_keys: dict[str, SshKey] = {}
        self.bids: dict[str, Bid] = {}
        self.instances: dict[str, Instance] = {}
        self.volumes: dict[str, Volume] = {}
        self.reservations: dict[str, Reservation] = {}
        self.quotas: dict[str, int] = {}
        self.storage_quota_gb = 100_000
        self.bids_by_idempotency_key: dict[str, str] = {}
        self.account_key = self.new_api_key("account", now + _YEAR)

    def new_api_key(self, name: str, expires_at: float) -> ApiKey:
        """A key that opens everything until then."""
        secret = new_fid("fkey") + new_fid("x")[2:]
        key = ApiKey(fid=new_fid("apikey"), name=name, secret=secret, expires_at=expires_at)
        self.add(self.api_keys, key)
        return key

    def add(self, table: dict[str, Record], record: Record) -> Record:
        """Puts a record into its table."""
        table[record.fid] = record
        record.keep()
        return record

    def project_of(self, fid: str) -> Project:
        """A project the user may work in. Raises Refused."""
        project = self.projects.get(fid)
        if project is None or not project.member:
            raise forbidden("User does not have access to this project")
        return project

    def auction_of(self, instance_type: str, region: str) -> Auction:
        """Where that type is sold. Raises Refused."""
        auction = self.auctions.get(instance_type)
        if auction is None:
            raise business(f"Instance type {instance_type} not found")
        if auction.instance_type.region != region:
            raise business(f"Instance type {instance_type} is not available in region {region}")
        return auction

    def listed(self, table: Mapping[str, Kept]) -> list[dict[str, Any]]:
        """What a listing shows, which may be behind."""
        moment = clock.monotonic() - self.rules.lag
        found: Iterable[dict[str, Any] | None] = (each.as_of(moment) for each in table.values())
        return [each for each in found if each is not None]

    def instances_of(self, bid: Bid) -> list[Instance]:
        """Machines that a bid holds now."""
        return [i for i in map(self.instances.__getitem__, bid.instances) if i.there]

    def held(self, auction: Auction) -> int:
        """Places of an auction that somebody has."""
        fid = auction.instance_type.fid
        return sum(1 for i in self.instances.values() if i.instance_type == fid and i.there)
