"""What the machine of the leader is given and gives back: moments, peers, and the actions that the server takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..protocol.messages import GangSettings, Message


class Moment(NamedTuple):
    """Now, on the leader: monotonic seconds, and unix time."""

    steady: float
    unix: float


class Peer(NamedTuple):
    """Who is at the other end of an authenticated connection."""

    role: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send one message to each of these connections (those that still are).

    One that is not urgent may wait for the next that is; a beat comes along soon.
    """

    connections: tuple[int, ...]
    message: Message
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection once what was sent before has left."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProveMaster:
    """Choose and hold the master port; answer with `master_proved` or `master_failed`."""


@dataclass(frozen=True, slots=True)
class CloseMaster:
    """Give the master port back; the workers need it now."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to serve."""


Action = Send | Close | ProveMaster | CloseMaster | Finish


class Outbox:
    """Collects actions in order, and puts task and epoch on every message."""

    def __init__(self, settings: GangSettings) -> None:
        self._stamp = {"task": settings.task, "epoch": settings.epoch}
        self._actions: list[Action] = []

    def add(self, action: Action) -> None:
        """One more thing to do."""
        self._actions.append(action)

    def tell(self, message: Message, *connections: int, urgent: bool = True) -> None:
        """Send a message to each of these."""
        if connections:
            self._actions.append(Send(connections, {**message, **self._stamp}, urgent))

    def take(self) -> list[Action]:
        """What was collected; it is the caller's now."""
        actions, self._actions = self._actions, []
        return actions
