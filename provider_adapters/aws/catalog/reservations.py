"""Capacity reservations and capacity blocks: their zone, whether they can be used, and how long."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from provider_adapters.aws.service import Service
from provider_adapters.aws.session import Clients

CLOSED_SECONDS = 35 * 60.0
"""A run in a capacity block ends this many seconds before the block does: EC2 begins to end its machines 30 minutes
before ("How Capacity Blocks work" in the EC2 user guide), without a notice to them.
"""
NOTICE_SECONDS = 120.0
"""Seconds of notice that the ranks get before that, as many as on spot."""
_USABLE = "active"


@dataclass(frozen=True, slots=True)
class Reservation:
    """EC2's description of a reservation.

    Attributes:
        ends: Unix time at which a capacity block ends; None for a reservation, whose machines continue after its end.
    """

    id: str
    zone: str
    ends: float | None

    def notes(self) -> list[str]:
        """Notes for the plan."""
        if self.ends is None:
            return []
        return [
            "a capacity block is paid in advance; the hours of its machines cost nothing more",
            f"the capacity block ends at {_clock(self.ends)}; the ranks are asked to stop in time to be gone "
            f"{CLOSED_SECONDS / 60:g} minutes before, when EC2 begins to end its machines",
        ]


def find(clients: Clients, region: str, name: str, now: float) -> Reservation:
    """The reservation or block with that id, if a launch in it is possible now. Raises ConfigError, ProviderError."""
    ec2 = Service.of(clients, "ec2", region)
    told = ec2.call("DescribeCapacityReservations", CapacityReservationIds=[name])
    told = told["CapacityReservations"]
    if not told:
        raise ConfigError(f"there is no capacity reservation {name} in {region}; correct [aws]")
    return _usable(told[0], now)


def _usable(told: dict[str, Any], now: float) -> Reservation:
    name, state = str(told["CapacityReservationId"]), str(told.get("State", _USABLE))
    is_block = told.get("ReservationType") == "capacity-block"
    what = "capacity block" if is_block else "capacity reservation"
    if state != _USABLE:
        begins = told.get("StartDate")
        when = f"; it begins at {_clock(begins.timestamp())}" if begins and is_block else ""
        raise ConfigError(
            f"the {what} {name} is {state}, so nothing can be launched in it{when if state == 'scheduled' else ''}; "
            "wait until it is active, or take it out of [aws]"
        )
    ends = told["EndDate"].timestamp() if is_block and told.get("EndDate") else None
    found = Reservation(name, str(told["AvailabilityZone"]), ends)
    check_open(name, ends, now)
    return found


def check_open(name: str, ends: float | None, now: float) -> None:
    """Raises ConfigError for a block in which no time is left."""
    if ends is not None and now >= ends - CLOSED_SECONDS - NOTICE_SECONDS:
        raise ConfigError(
            f"the capacity block {name} ends at {_clock(ends)}, and EC2 ends its machines from 30 minutes before; take "
            "it out of [aws], or give another one"
        )


def notice(ends: float, now: float) -> dict[str, Any]:
    """How a node learns that its block ends, as `NodeSettings.preemption`.

    It is given the remaining time, not a wall clock time, since the clock of a node may be wrong.
    """
    return {
        "kind": "known",
        "after": max(0.0, ends - CLOSED_SECONDS - NOTICE_SECONDS - now),
        "notice": NOTICE_SECONDS,
        "reason": f"its capacity block ends at {_clock(ends)}",
    }


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
