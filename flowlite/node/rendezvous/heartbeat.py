"""When to show that one lives, and when one's own pause must not be taken for the silence of others."""

from __future__ import annotations

from ..protocol.messages import GangSettings


class Heartbeat:
    """The beat of one side, by its own steady clock."""

    def __init__(self, settings: GangSettings, now: float) -> None:
        self._every = settings.heartbeat
        self._longest = max(2 * settings.heartbeat, 2.0)
        self._ticked = now
        self._beat = now
        self._starved = False

    def pause(self, now: float) -> float:
        """Call at every tick: seconds that we ourselves were suspended or starved, or 0.

        Only a first pause counts: whoever is starved all the time must judge by what little it hears.
        """
        gap = now - self._ticked
        starved = gap > self._longest
        forgiven = starved and not self._starved
        self._ticked, self._starved = now, starved
        return gap if forgiven else 0.0

    def fresh(self, now: float) -> bool:
        """Whether a word that is read now was said lately: after a pause it may have waited for as long."""
        return now - self._ticked <= self._longest or self._starved

    def due(self, now: float) -> bool:
        """Whether it is time for a beat; it is then taken as given."""
        if now - self._beat < self._every:
            return False
        self._beat = now
        return True
