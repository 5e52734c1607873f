"""The time after the end of a gang: members linger until their output is collected, and are then released."""

from __future__ import annotations

from ..protocol.messages import GangSettings
from .actions import Finish, Outbox
from .membership import Members
from .supervisor_session import SupervisorSession

RELEASE_WAIT = 2.0
"""Seconds that the leader waits after the release for members to disconnect."""


class Linger:
    """Decides when members are released and when the leader's server ends.

    Attributes:
        asked: Whether the supervisor has asked for the release, since it has collected everything.
        given: When the members were released (leader's monotonic clock); None before.
    """

    def __init__(
        self, settings: GangSettings, outbox: Outbox, members: Members, session: SupervisorSession
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._members = members
        self._session = session
        self._ended = 0.0
        self.given: float | None = None
        self.asked = False

    def begin(self, now: float) -> None:
        """Starts the linger time; the gang has ended."""
        self._ended = now
        if self.asked:
            self.give(now)

    def give(self, now: float) -> None:
        """Releases the members and the supervisor."""
        if self.given is None:
            self.given = now
            self._outbox.tell({"type": "release"}, *self._members.connections())
            self._session.tell({"type": "release"})
            self.finish_if_alone()

    def tick(self, now: float) -> None:
        """Releases the members after the linger time, and ends the server `RELEASE_WAIT` after the release.

        The linger time counts from the supervisor's last message, if that came after the end.
        """
        if self.given is None:
            if now - max(self._ended, self._session.heard) >= self._settings.linger:
                self.give(now)
        elif now - self.given >= RELEASE_WAIT:
            self._outbox.add(Finish())

    def finish_if_alone(self) -> None:
        """Ends the server if members were released and all have disconnected."""
        if self.given is not None and not self._members.connected:
            self._outbox.add(Finish())
