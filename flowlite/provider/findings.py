"""What providers tell besides instances: volumes, offers and the results of checks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider.json_value import JsonValue

if TYPE_CHECKING:
    from flowlite.connect.base import Connection


@dataclass(frozen=True, slots=True)
class VolumeInfo(JsonValue):
    """A named volume at the provider.

    Attributes:
        used_by: Tasks or instances that have it mounted.
        price_per_month: US dollars for its present size; None if nothing is charged or known.
        created_at: Unix time from which it is charged; 0 if unknown.
        by_use: Whether it is charged by what is stored on it at the time, so that its present size does not give its
            past cost.
        cost_so_far: US dollars since it was created, if the provider knows what was stored; otherwise None.
    """

    name: str
    provider: str
    interface: str
    size_gb: float | None
    location: str
    used_bytes: int | None = None
    region: str = ""
    used_by: tuple[str, ...] = ()
    price_per_month: float | None = None
    created_at: float = 0.0
    by_use: bool = False
    cost_so_far: float | None = None


def kept_size(name: str, size_gb: float, asked: float | None) -> str:
    """Says that a volume which exists already does not get the size that was asked for; "" if it has that size."""
    if asked is None or abs(size_gb - asked) < 1:
        return ""
    return f"{name} existed already, and keeps its size of {size_gb:g} GB"


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """Where the files of a volume can be reached without a task.

    Attributes:
        connection: A connection to a machine that has the volume. Whoever returns the place closes it.
        command: The words that run Python there.
        directory: The volume's directory there.
    """

    connection: Connection
    command: tuple[str, ...]
    directory: str


@dataclass(frozen=True, slots=True)
class Finding(JsonValue):
    """The result of one check before a launch, such as of credentials.

    Attributes:
        what: What was checked, in a few words.
        ok: Whether it is as it should be.
        detail: What was found and, if that is not enough, what to do. Never a secret.
    """

    what: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Offer(JsonValue):
    """One way to get a gang, with its price.

    Attributes:
        price_per_hour: US dollars per instance and hour; None if it is not known.
        spot: Whether the machines may be taken away.
        fits: Whether it meets the request. If not, `note` says why it was left out.
    """

    provider: str
    instance_type: str
    region: str
    gpu: str
    gpus_per_node: int
    price_per_hour: float | None
    available: bool
    note: str = ""
    spot: bool = False
    fits: bool = True

    @property
    def price_to_sort_by(self) -> float:
        """The price per hour; infinite if it is not known, so that such offers come last."""
        return math.inf if self.price_per_hour is None else self.price_per_hour
