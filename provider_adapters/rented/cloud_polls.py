"""Pauses between checks of booting machines: the cloud is asked ever more rarely, the machines' ports often."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowlite.state.clock import monotonic

PAUSES = (1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 12.0, 15.0)
"""Seconds between calls to the cloud; the last value repeats."""
PORTS = 0.1
"""Seconds between two probes of the machines' ports, which cost no call."""


class CloudPolls:
    """When the cloud was asked about each launch token, in this process; held by the provider object.

    if looks.due(token):
        described = ...  # one call for all machines of the launch
        looks.looked(token)
    raise LaunchPending(message, retry_after=looks.pause(token, addresses_known=True))
    """

    def __init__(
        self, clock: Callable[[], float] = monotonic, pauses: Sequence[float] = PAUSES
    ) -> None:
        self._clock = clock
        self._pauses = pauses
        self._next: dict[str, tuple[int, float]] = {}

    def due(self, token: str) -> bool:
        """Whether the cloud should be asked now."""
        return self._clock() >= self._next.get(token, (0, 0.0))[1]

    def looked(self, token: str) -> None:
        """Records that the cloud was asked."""
        times = self._next.get(token, (0, 0.0))[0]
        pause = self._pauses[min(times, len(self._pauses) - 1)]
        self._next[token] = (times + 1, self._clock() + pause)

    def pause(self, token: str, *, addresses_known: bool) -> float:
        """Seconds until the next check; short while ports can be probed."""
        left = max(0.0, self._next.get(token, (0, 0.0))[1] - self._clock())
        return min(left, PORTS) if addresses_known else left

    def forget(self, token: str) -> None:
        """Forgets a launch that is over."""
        self._next.pop(token, None)
