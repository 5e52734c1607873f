"""Prices, capacity and quotas of the box.

The prices are close to those of AWS in us-east-1 at the end of 2025, so that plans look realistic. They are not a
price list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

_GPUS = {
    "g4dn": "xlarge 0.526, 2xlarge 0.752, 4xlarge 1.204, 8xlarge 2.176, 12xlarge 3.912, 16xlarge 4.352",
    "g5": "xlarge 1.006, 2xlarge 1.212, 4xlarge 1.624, 8xlarge 2.448, 12xlarge 5.672, 16xlarge 4.096, "
    "24xlarge 8.144, 48xlarge 16.288",
    "g5g": "xlarge 0.42, 2xlarge 0.556, 4xlarge 0.828, 8xlarge 1.372, 16xlarge 2.744",
    "g6": "xlarge 0.8048, 2xlarge 0.9776, 4xlarge 1.3232, 8xlarge 2.0144, 12xlarge 4.6016, 16xlarge 3.3968, "
    "24xlarge 6.6752, 48xlarge 13.3504",
    "g6e": "xlarge 1.861, 2xlarge 2.24208, 4xlarge 3.00424, 8xlarge 4.52856, 12xlarge 10.49264, 16xlarge 7.57719, "
    "24xlarge 15.06559, 48xlarge 30.13118",
    "p4d": "24xlarge 21.9576",
    "p4de": "24xlarge 27.4471",
    "p5": "4xlarge 6.88, 48xlarge 55.04",
    "p5e": "48xlarge 55.04",
    "p5en": "48xlarge 63.296",
    "p6-b200": "48xlarge 113.9328",
}
_BURSTING = {"t3": "micro 0.0104, small 0.0208, medium 0.0416, large 0.0832, xlarge 0.1664"}
# Families in which the price is proportional to the size, with the price of `large`.
_EVEN = {
    "c5": 0.085,
    "c7g": 0.0725,
    "c7i": 0.08925,
    "m5": 0.096,
    "m7g": 0.0816,
    "m7i": 0.1008,
    "r7i": 0.1323,
}
_SIZES = {"large": 1, "xlarge": 2, **{f"{n}xlarge": 2 * n for n in (2, 4, 8, 12, 16, 24, 48)}}


def _on_demand() -> dict[str, float]:
    found = {
        f"{family}.{size}": float(price)
        for family, listed in (_GPUS | _BURSTING).items()
        for size, _, price in (each.partition(" ") for each in listed.split(", "))
    }
    for family, price in _EVEN.items():
        found |= {f"{family}.{size}": round(price * n, 6) for size, n in _SIZES.items()}
    return found


ON_DEMAND = _on_demand()
SPOT_SHARE = 0.4
DISK_PRICE = 0.08
"""US dollars per GB of gp3 and month of 30 days."""
ADDRESS_PRICE = 0.005
"""US dollars per public address and hour."""
# Prices differ a little between regions, as in reality.
DEARER = {"us-east-1": 1.0, "us-east-2": 1.0, "us-west-2": 1.0, "us-west-1": 1.2, "eu-west-1": 1.11}
QUOTAS = {
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-417A185B": "Running On-Demand P instances",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
}
GENEROUS = 10_000.0


@dataclass
class Market:
    """What tests can set. `reset` restores the defaults.

    Attributes:
        capacity: How many more instances of a type a zone has. Types that are not named are unlimited.
        quotas: vCPUs by quota code.
        spot: Changed spot prices by type and zone, with the time from which each holds, the newest last.
    """

    capacity: dict[tuple[str, str], int] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=lambda: dict.fromkeys(QUOTAS, GENEROUS))
    spot: dict[tuple[str, str], list[tuple[datetime, float]]] = field(default_factory=dict)

    def reset(self) -> None:
        """Restores the defaults."""
        self.capacity.clear()
        self.spot.clear()
        self.quotas = dict.fromkeys(QUOTAS, GENEROUS)

    def price(self, kind: str, region: str) -> float | None:
        """The on-demand price in dollars per hour; None for a type without a price."""
        base = ON_DEMAND.get(kind)
        return None if base is None else round(base * DEARER.get(region, 1.15), 6)

    def spot_price(self, kind: str, zone: str) -> float | None:
        """The current spot price in dollars per hour. It is a little higher in zones with later letters."""
        if changes := self.spot.get((kind, zone)):
            return changes[-1][1]
        return self.usual_spot_price(kind, zone)

    def usual_spot_price(self, kind: str, zone: str) -> float | None:
        """The spot price in dollars per hour unless a test has set one."""
        base = self.price(kind, zone[:-1])
        if base is None:
            return None
        return round(base * SPOT_SHARE * (1 + 0.02 * (ord(zone[-1]) - ord("a"))), 4)

    def left(self, kind: str, zone: str) -> int | None:
        """How many more instances of a type a zone has; None if unlimited."""
        return self.capacity.get((kind, zone))

    def take(self, kind: str, zone: str, count: int) -> None:
        """Takes capacity from a zone. A negative count returns it."""
        if (kind, zone) in self.capacity:
            self.capacity[kind, zone] -= count


def quota_code(kind: str, spot: bool) -> str:
    """The code of the quota that counts a type's vCPUs."""
    family = kind.partition(".")[0]
    if family.startswith(("g", "vt")) and not family.startswith("gr"):
        return "L-3819A6DF" if spot else "L-DB2E81BA"
    if family[0] == "p":
        if not spot:
            return "L-417A185B"
        return "L-7212CCBC" if family[1:2] in "234" else "L-C4BD4855"
    return "L-34B43A08" if spot else "L-1216C47A"
