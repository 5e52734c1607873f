"""The records of the cloud, with the format in which the API shows each.

Every change is kept with its time, so that a listing can show an earlier state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from flowlite.state import clock
from flowlite.testing.cloud.mithril.forms import money, stamp

NOT_ENDED = frozenset(
    {
        "STATUS_NEW", "STATUS_CONFIRMED", "STATUS_INITIALIZING", "STATUS_STARTING", "STATUS_RUNNING",
        "STATUS_STOPPING", "STATUS_RELOCATING", "STATUS_PREEMPTING",
    }
)  # fmt: skip
STATUSES = NOT_ENDED | {
    "STATUS_TERMINATED", "STATUS_PREEMPTED", "STATUS_REPLACED", "STATUS_PAUSED", "STATUS_ERROR"
}  # fmt: skip


@dataclass(eq=False, kw_only=True)
class Kept(ABC):
    """A record with an id and a history."""

    fid: str
    created_at: float = field(default_factory=clock.wall)
    versions: list[tuple[float, dict[str, Any] | None]] = field(default_factory=list, repr=False)

    @abstractmethod
    def model(self) -> dict[str, Any] | None:
        """The record as the API shows it now; None if it is hidden."""

    def keep(self) -> None:
        """Adds the current state to the history."""
        found = self.model()
        if not self.versions or self.versions[-1][1] != found:
            self.versions.append((clock.monotonic(), found))

    def as_of(self, moment: float) -> dict[str, Any] | None:
        """The record as it was at a moment of the monotonic clock; None if it did not exist."""
        return next((seen for at, seen in reversed(self.versions) if at <= moment), None)


@dataclass(eq=False, kw_only=True)
class ApiKey(Kept):
    """An API key of the account."""

    name: str
    secret: str
    expires_at: float
    deactivated_at: float | None = None

    @property
    def good(self) -> bool:
        """Whether the key is valid."""
        return self.deactivated_at is None and clock.wall() < self.expires_at

    def model(self) -> dict[str, Any]:
        return {
            "fid": self.fid,
            "name": self.name,
            "created_at": stamp(self.created_at),
            "expires_at": stamp(self.expires_at),
            "deactivated_at": _maybe(self.deactivated_at),
            "snippet": f"{self.secret[:9]}...",
        }


@dataclass(eq=False, kw_only=True)
class SshKey(Kept):
    """A public key that machines accept."""

    name: str
    project: str
    public_key: str
    required: bool = False

    def model(self) -> dict[str, Any]:
        return {
            "fid": self.fid,
            "name": self.name,
            "project": self.project,
            "public_key": self.public_key,
            "created_at": stamp(self.created_at),
            "required": self.required,
        }


@dataclass(eq=False, kw_only=True)
class Bid(Kept):
    """A bid for machines.

    Attributes:
        instances: The ids of all machines that it has had.
        events: Its history, as the API shows it.
        barred_until: It wins nothing before this moment of the monotonic clock.
    """

    name: str
    project: str
    created_by: str
    limit_cents: int
    quantity: int
    instance_type: str
    region: str
    specification: dict[str, Any]
    status: str = "Open"
    deactivated_at: float | None = None
    instances: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    barred_until: float = 0.0
    counted: int = 0

    def model(self) -> dict[str, Any]:
        return {
            "fid": self.fid,
            "name": self.name,
            "project": self.project,
            "created_by": self.created_by,
            "created_at": stamp(self.created_at),
            "deactivated_at": _maybe(self.deactivated_at),
            "limit_price": money(self.limit_cents),
            "instance_quantity": self.quantity,
            "instance_type": self.instance_type,
            "region": self.region,
            "instances": list(self.instances),
            "launch_specification": dict(self.specification),
            "status": self.status,
        }

    def happened(self, what: str, **details: Any) -> None:
        """Adds an event to the history."""
        event = {"timestamp": stamp(clock.wall()), "event_type": what, "user_id": self.created_by}
        self.events.append({**event, **details})


@dataclass(eq=False, kw_only=True)
class Instance(Kept):
    """One machine of a bid.

    Attributes:
        end_time: The Unix time at which it will be taken away, once that is announced.
        statuses: Its status history, as the API shows it.
        states: The same history as (Unix time, state) pairs.
        periods: Its charges, as the API shows them: cents per hour, with begin and end.
    """

    name: str
    project: str
    created_by: str
    instance_type: str
    region: str
    bid: str | None
    status: str = "STATUS_NEW"
    address: str | None = None
    ssh_destination: str | None = None
    end_time: float | None = None
    statuses: list[dict[str, Any]] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    periods: list[tuple[int, float, float | None]] = field(default_factory=list)

    @property
    def there(self) -> bool:
        """Whether it takes up a place of its auction."""
        return self.status in NOT_ENDED

    def model(self) -> dict[str, Any]:
        return {
            "fid": self.fid,
            "name": self.name,
            "project": self.project,
            "created_at": stamp(self.created_at),
            "created_by": self.created_by,
            "instance_type": self.instance_type,
            "region": self.region,
            "bid": self.bid,
            "reservation": None,
            "ssh_destination": self.ssh_destination,
            "private_ip": self.address,
            "status": self.status,
        }

    def becomes(self, status: str) -> None:
        """Sets the status and records the time."""
        if status != self.status or not self.statuses:
            now = clock.wall()
            self.status = status
            self.statuses.append({"timestamp": stamp(now), "status": status})
            self.states.append((now, status))
        self.keep()

    def charge(self, cents: int | None) -> None:
        """Sets what it costs per hour from now on. None for nothing."""
        now = clock.wall()
        if self.periods and self.periods[-1][2] is None:
            old, since, _ = self.periods[-1]
            if old == cents:
                return
            self.periods[-1] = (old, since, now)
        if cents is not None:
            self.periods.append((cents, now, None))

    @property
    def cost(self) -> float:
        """The cost in US dollars so far."""
        now = clock.wall()
        spans = [
            (cents, (now if end is None else end) - start) for cents, start, end in self.periods
        ]
        return sum(cents * seconds for cents, seconds in spans) / 100 / 3600


@dataclass(eq=False, kw_only=True)
class Volume(Kept):
    """A disk (Block) or a file system (File)."""

    name: str
    project: str
    region: str
    interface: str
    capacity_gb: int
    deleted_at: float | None = None
    bids: list[str] = field(default_factory=list)
    attachments: dict[str, str] = field(default_factory=dict)

    def model(self) -> dict[str, Any]:
        return {
            "fid": self.fid,
            "name": self.name,
            "region": self.region,
            "created_at": stamp(self.created_at),
            "deleted_at": _maybe(self.deleted_at),
            "capacity_gb": self.capacity_gb,
            "project": self.project,
            "interface": self.interface,
            "bids": list(self.bids),
            "reservations": [],
            "attachments": dict(self.attachments),
        }


@dataclass(eq=False, kw_only=True)
class Reservation(Kept):
    """A contract on machines for a period. It is only recorded: it provides no machines."""

    shown: dict[str, Any]

    def model(self) -> dict[str, Any]:
        return {"fid": self.fid, "created_at": stamp(self.created_at), **self.shown}


def _maybe(moment: float | None) -> str | None:
    return None if moment is None else stamp(moment)
