"""The state of the cloud, under one lock."""

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
    """The behaviour of the cloud. Tests can change it at any time.

    Attributes:
        auction_seconds: The interval between auctions. The real ones are two minutes apart.
        notice_seconds: The notice before machines are taken away. The real one is five minutes.
        boot_seconds: The time from the allocation until a machine runs.
        stop_seconds: The time from the request until a machine is gone.
        unique_names: Whether a new bid with the name of a live bid is refused, and a new volume with that of another.
        honours_idempotency_keys: Whether a second POST with the same Idempotency-Key returns the bid of the first.
        page_size: The default page size.
        lag: By how many seconds listings lag.
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
    """The auction of one type in one region.

    Attributes:
        capacity: The number of machines, including those in use.
        price_cents: What others bid. A bid needs at least this limit to win.
        clearing_cents: What the winners pay.
        history: Unix times with the price from then on.
    """

    instance_type: InstanceType
    capacity: int
    price_cents: int
    clearing_cents: int
    history: list[tuple[float, int]] = field(default_factory=list)

    @property
    def fid(self) -> str:
        """The auction's id."""
        return fixed_fid("auc", self.instance_type.name, self.instance_type.region)


@dataclass(frozen=True)
class Project:
    """A project of the organization. `member` is whether the test's user belongs to it."""

    fid: str
    name: str
    member: bool = True
    created_at: float = field(default_factory=clock.wall)

    def model(self) -> dict[str, Any]:
        """The project as the API shows it."""
        return {"fid": self.fid, "name": self.name, "created_at": stamp(self.created_at)}


class World:
    """The state. Hold `lock` to read or change it, and call a record's `keep` after changing the record."""

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
        """Creates a key that is valid until `expires_at`."""
        secret = new_fid("fkey") + new_fid("x")[2:]
        key = ApiKey(fid=new_fid("apikey"), name=name, secret=secret, expires_at=expires_at)
        self.add(self.api_keys, key)
        return key

    def add(self, table: dict[str, Record], record: Record) -> Record:
        """Adds a record to its table."""
        table[record.fid] = record
        record.keep()
        return record

    def project_of(self, fid: str) -> Project:
        """A project that the user may use. Raises Refused."""
        project = self.projects.get(fid)
        if project is None or not project.member:
            raise forbidden("User does not have access to this project")
        return project

    def auction_of(self, instance_type: str, region: str) -> Auction:
        """The auction of a type in a region. Raises Refused."""
        auction = self.auctions.get(instance_type)
        if auction is None:
            raise business(f"Instance type {instance_type} not found")
        if auction.instance_type.region != region:
            raise business(f"Instance type {instance_type} is not available in region {region}")
        return auction

    def listed(self, table: Mapping[str, Kept]) -> list[dict[str, Any]]:
        """What a listing shows, subject to lag."""
        moment = clock.monotonic() - self.rules.lag
        found: Iterable[dict[str, Any] | None] = (each.as_of(moment) for each in table.values())
        return [each for each in found if each is not None]

    def instances_of(self, bid: Bid) -> list[Instance]:
        """The machines that a bid has now."""
        return [i for i in map(self.instances.__getitem__, bid.instances) if i.there]

    def held(self, auction: Auction) -> int:
        """The number of machines of an auction that are in use."""
        fid = auction.instance_type.fid
        return sum(1 for i in self.instances.values() if i.instance_type == fid and i.there)
