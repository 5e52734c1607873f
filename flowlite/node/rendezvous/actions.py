"""Inputs and outputs of the leader's state machine: moments, peers, and the actions that the server takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..protocol.messages import GangSettings, Message
from ..quick_dataclass import dataclass


class LeaderTime(NamedTuple):
    """A time on the leader, by its monotonic clock (`steady`, seconds) and as Unix time."""

    steady: float
    unix: float


class Peer(NamedTuple):
    """The other end of an authenticated connection: its role, the name it gave, and its address."""

    role: str
    name: str
    address: str


class Send(NamedTuple):
    """Send one message to each of these connections that is still open.

    A message that is not urgent may wait for the next one that is, which is at the latest the next heartbeat.
    """

    connections: tuple[int, ...]
    message: Message
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection after what was sent before has been written."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProveMaster:
    """Choose the master port and listen on it; answer with `master_proved` or `master_failed`."""


@dataclass(frozen=True, slots=True)
class CloseMaster:
    """Stop listening on the master port, because the workers need it now."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the server: nothing is left to serve."""


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker of another node has ended. Only if the leader's node copies files for all nodes."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OthersEnded:
    """The leader's node need not wait for workers of other nodes any more. Only if it copies files for all nodes."""


Action = Send | Close | ProveMaster | CloseMaster | WorkerEnded | OthersEnded | Finish


class Outbox:
    """Collects actions in order, and adds task and attempt to every message."""

    def __init__(self, settings: GangSettings) -> None:
        self._stamp = {"task": settings.task, "attempt": settings.attempt}
        self._actions: list[Action] = []

    def add(self, action: Action) -> None:
        """Appends an action."""
        self._actions.append(action)

    def tell(self, message: Message, *connections: int, urgent: bool = True) -> None:
        """Appends a `Send` of a message to each of these connections."""
        if connections:
            self._actions.append(Send(connections, {**message, **self._stamp}, urgent))

    def take(self) -> list[Action]:
        """Returns the collected actions, and empties the outbox."""
        actions, self._actions = self._actions, []
        return actions
