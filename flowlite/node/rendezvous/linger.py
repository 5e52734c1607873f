"""After the end: wait to be collected, then let everybody go."""

from __future__ import annotations

from ..protocol.messages import GangSettings
from .actions import Finish, Outbox
from .membership import Members
from .supervisor_session import SupervisorSession

RELEASE_WAIT = 2.0
"""Seconds after release until agents that have not hung up are left alone."""


class Linger:
    """The last phase of a gang.

    Attributes:
        asked: Whether the supervisor has everything already and wants no lingering.
        given: Whether the members were let go.
    """

    def __init__(
        self, settings: GangSettings, outbox: Outbox, members: Members, session: SupervisorSession
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._members = members
        self._session = session
        self._ended = 0.0
        self._given: float | None = None
        self.asked = False

    @property
    def given(self) -> bool:
        return self._given is not None

    def begin(self, now: float) -> None:
        """The gang has ended."""
        self._ended = now
        if self.asked:
            self.give(now)

    def give(self, now: float) -> None:
        """Let everybody go."""
        if self._given is None:
            self._given = now
            self._outbox.tell({"type": "release"}, *self._members.connections())
            self._session.tell({"type": "release"})
            self.finish_if_alone()

    def tick(self, now: float) -> None:
        """Nobody is waited for endlessly. A supervisor on the line is still collecting."""
        if self._given is None:
            if now - max(self._ended, self._session.heard) >= self._settings.linger:
                self.give(now)
        elif now - self._given >= RELEASE_WAIT:
            self._outbox.add(Finish())

    def finish_if_alone(self) -> None:
        """Once all members have gone, nothing is left to serve."""
        if self._given is not None and not self._members.connected:
            self._outbox.add(Finish())
