"""A laptop that is suspended: the time since its boot goes on, and no other clock of a process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowlite.state import clock


class ClosedLid(clock.Source):
    """The times of this machine.

    Attributes:
        slept: Seconds for which it was suspended.
        awake: Seconds that have passed besides.
    """

    def __init__(self) -> None:
        self.slept = self.awake = 0.0

    def since_boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.awake + self.slept

    def monotonic(self) -> float:
        return time.monotonic() + self.awake

    def wall(self) -> float:
        return time.time() + self.awake + self.slept


@contextmanager
def closed_lid() -> Iterator[ClosedLid]:
    """Makes this process take its times from such a laptop."""
    source = ClosedLid()
    with clock.running_on(source):
        yield source
