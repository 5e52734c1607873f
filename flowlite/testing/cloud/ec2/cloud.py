"""The state that the parts of the box's EC2 share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flowlite.state import clock
from flowlite.testing.cloud.ec2.firewall import Firewall
from flowlite.testing.cloud.ec2.life import Lives
from flowlite.testing.cloud.ec2.life_record import Life
from flowlite.testing.cloud.ec2.market import Market, quota_code
from flowlite.testing.cloud.ec2.permissions.policy import Policy
from flowlite.testing.cloud.ec2.storage.disks import Disks
from flowlite.testing.cloud.ec2.storage.file_systems import FileSystems
from flowlite.testing.cloud.machines import Machines
from flowlite.testing.cloud.timers import Timers


@dataclass
class Launch:
    """The result of a client token: the request's fingerprint and its reservation."""

    fingerprint: str
    reservation: Any


@dataclass
class Reserved:
    """A capacity reservation or a capacity block."""

    id: str
    kind: str
    zone: str
    total: int
    market: str = "default"
    state: str = "active"
    begins: datetime | None = None
    ends: datetime | None = None
    tags: dict[str, str] = field(default_factory=dict)


# Those that a new account has; others have to be opted into (AWS Account Management, "Enable or disable regions").
REGIONS = (
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "ca-central-1",
    "eu-central-1",
    "eu-north-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "sa-east-1",
)
# Shorter than on EC2: how long other calls do not know a new group, and how long quotas count an ended instance.
UNKNOWN_SECONDS = 0.3
COUNTED_SECONDS = 1.0


class Cloud:
    """The state of the box's EC2, over all regions."""

    def __init__(self, machines: Machines, timers: Timers) -> None:
        self.machines = machines
        self.lives = Lives(machines, timers)
        self.disks = Disks(self.lives)
        self.lives.on_gone = self.disks.let_go
        self.files = FileSystems(self.lives)
        self.firewall = Firewall(self.lives, self.files)
        self.market = Market()
        self.policy = Policy()
        self.regions: tuple[str, ...] = REGIONS
        self.launches: dict[tuple[str, str], dict[str, Launch]] = {}
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        # How long other calls do not know a new security group, in seconds, and when each group was created.
        self.unknown_seconds = UNKNOWN_SECONDS
        self.security_groups: dict[str, float] = {}
        # How long ended machines count against quotas, in seconds.
        self.counted_seconds = COUNTED_SECONDS
        # How long interfaces of ended machines stay in their groups, in seconds; minutes on EC2.
        self.late_seconds = 0.0
        self.reserved: dict[str, Reserved] = {}
        self.boots: list[str] = []

    def reset(self) -> None:
        """Restores the first state."""
        self.lives.reset()
        self.disks.forget()
        self.files.forget()
        self.firewall.forget()
        self.market.reset()
        self.policy.set(None)
        self.regions = REGIONS
        self.launches.clear()
        self.groups.clear()
        self.security_groups.clear()
        self.unknown_seconds, self.counted_seconds = UNKNOWN_SECONDS, COUNTED_SECONDS
        self.late_seconds = 0.0
        self.reserved.clear()
        self.boots.clear()

    def living(self, region: str) -> list[Life]:
        """The instances of a region that use capacity."""
        return [
            life
            for life in self.lives.all()
            if life.region == region and life.state in ("pending", "running")
        ]

    def is_unknown(self, group: str) -> bool:
        """Whether a security group is so new that EC2 does not know it everywhere."""
        return clock.monotonic() - self.security_groups.get(group, -math.inf) < self.unknown_seconds

    def holds_groups(self, life: Life) -> bool:
        """Whether an instance is still in its groups: until it has ended and its interfaces are gone."""
        since = clock.monotonic() - self.late_seconds
        return life.state != "terminated" or life.history[-1][0] > since

    def counted(self, region: str) -> list[Life]:
        """The instances of a region that count against quotas: those that live or ended recently."""
        since = clock.monotonic() - self.counted_seconds
        return [
            life
            for life in self.lives.all()
            if life.region == region
            and (life.state in ("pending", "running") or life.history[-1][0] > since)
        ]

    def vcpus_used(self, region: str, code: str, vcpus: dict[str, int]) -> int:
        """The vCPUs of running instances that one quota counts."""
        return sum(
            vcpus.get(life.instance.instance_type, 0)
            for life in self.counted(region)
            if quota_code(life.instance.instance_type, life.spot is not None) == code
        )

    def next_boot(self) -> str:
        """How the next machine boots: "runs", "never", or "dies"."""
        return self.boots.pop(0) if self.boots else "runs"
