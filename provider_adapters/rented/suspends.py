"""Whether this machine was suspended lately. A laptop whose lid is opened has no network for some seconds."""

from __future__ import annotations

import math

from flowlite.state import clock

# The two clocks are not read at the same moment.
_SHORTEST = 2.0
_UNTIL_CONNECTED = 30.0


class Suspends:
    """The suspends of this machine during the life of a process.

    Machines may have booted while this one was suspended. A launch that is over its time is therefore checked once more
    when the network is up again.
    """

    def __init__(self) -> None:
        self._suspended = _suspended()
        self._woke_at = -math.inf

    def just_woke(self) -> bool:
        """Whether this machine woke up a moment ago, as far as earlier calls can tell; to be asked at every look."""
        suspended, now = _suspended(), clock.monotonic()
        if suspended - self._suspended > _SHORTEST:
            self._woke_at = now
        self._suspended = suspended
        return now - self._woke_at < _UNTIL_CONNECTED


def _suspended() -> float:
    """Seconds of suspends, up to a constant. The clock since boot counts them, and the monotonic clock does not."""
    return clock.since_boot() - clock.monotonic()
