"""When to send a heartbeat, and how to tell a pause of this process from the silence of others."""

from __future__ import annotations

from ..protocol.messages import GangSettings


class Heartbeat:
    """The heartbeat of one side, by its own monotonic clock."""

    def __init__(self, settings: GangSettings, now: float) -> None:
        self._every = settings.heartbeat
        self._longest = max(2 * settings.heartbeat, 2.0)
        self._ticked = now
        self._beat = now
        self._starved = False

    def pause(self, now: float) -> float:
        """Returns for how many seconds this process was suspended or starved before this tick, or 0.

        Call it at every tick. Of consecutive pauses only the first is reported: a process that is starved all the time
        must judge by the few messages that it receives.
        """
        gap = now - self._ticked
        starved = gap > self._longest
        forgiven = starved and not self._starved
        self._ticked, self._starved = now, starved
        return gap if forgiven else 0.0

    def fresh(self, now: float) -> bool:
        """Whether a message that is read now was sent recently. After a pause it may be as old as the pause is long."""
        return now - self._ticked <= self._longest or self._starved

    def due(self, now: float) -> bool:
        """Whether it is time for a heartbeat. If so, it counts as sent."""
        if now - self._beat < self._every:
            return False
        self._beat = now
        return True
