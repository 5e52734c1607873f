"""One instance of the box, with its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moto.ec2.models.instances import InstanceState, StateReason

from flowlite.state import clock
from flowlite.testing.cloud.ec2.instance import RentedInstance
from flowlite.testing.cloud.ec2.names import iso
from flowlite.testing.cloud.machines import Machine
from flowlite.testing.cloud.timers import Pending

CODES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}


@dataclass
class Life:
    """One instance.

    Attributes:
        history: When it entered which state, on the monotonic clock.
        spot: Its spot request, if any.
        notice: When it will be interrupted.
        rebalance: When it got the rebalance recommendation.
        gigabytes: The size of its disks.
        public: Whether it has a public address.
        block: Whether it is in a capacity block, whose hours are paid in advance.
    """

    instance: RentedInstance
    region: str
    machine: Machine
    spot: Any = None
    history: list[tuple[float, str]] = field(default_factory=list)
    notice: datetime | None = None
    rebalance: datetime | None = None
    timers: list[Pending] = field(default_factory=list)
    console: str = ""
    gigabytes: int = 0
    public: bool = False
    block: bool = False

    @property
    def state(self) -> str:
        """The state, as EC2 names it."""
        return str(self.instance._state.name)

    def enter(self, state: str) -> None:
        """Changes the state."""
        self.instance._state = InstanceState(state, CODES[state])
        self.history.append((clock.monotonic(), state))

    def explain(self, reason: tuple[str, str], transition: str) -> None:
        """Sets the reason of the state."""
        self.instance.state_reason = StateReason(f"{reason[0]}: {reason[1]}", reason[0])
        self.instance._reason = transition

    def action(self) -> dict[str, str] | None:
        """The instance action in the metadata service, if it will be interrupted."""
        return None if self.notice is None else {"action": "terminate", "time": iso(self.notice)}
