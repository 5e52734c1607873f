"""The leader's session for its supervisor: the journal of events, and the relay of streams.

At most one supervisor sits at it; a new one takes over (leases in the store decide which one is right). Events are kept
from the first, so whoever attaches gets all that it has not had.
"""

from __future__ import annotations

from typing import Any

from ..log_stream.flow_control import StreamRelay
from ..protocol.messages import STREAMS, GangSettings, Message
from .actions import Close, Moment, Outbox
from .membership import Members


class SupervisorSession:
    """Who follows the gang, and what it has been told.

    Attributes:
        connection: Number of the supervisor's connection, or None.
        heard: When it last said anything (leader's steady clock).
    """

    def __init__(
        self, settings: GangSettings, outbox: Outbox, members: Members, now: Moment
    ) -> None:
        self._outbox = outbox
        self._members = members
        self._relay = StreamRelay(settings)
        self._journal: list[Message] = []
        self.connection: int | None = None
        self.heard = now.steady

    def record(self, kind: str, now: Moment, **body: Any) -> None:
        """Write an event down, and tell it if somebody listens."""
        event = {"seq": len(self._journal) + 1, "time": now.unix, "kind": kind, **body}
        message = {"type": "event", "event": event, "steady": now.steady}
        self._journal.append(message)
        self.tell(message)

    def tell(self, message: Message) -> None:
        """Send a message to the supervisor, if there is one."""
        if self.connection is not None:
            self._outbox.tell(message, self.connection)

    def attach(self, connection: int, after: int, phase: str, now: Moment) -> None:
        """A supervisor takes over: it learns the phase, and the events after the number it names."""
        if after > len(self._journal):
            reason = f"you know of event {after}, this leader of {len(self._journal)} only: it is not the one you knew"
            self._outbox.tell({"type": "refuse", "reason": reason}, connection)
            self._outbox.add(Close(connection))
            return
        if self.connection is not None and self.connection != connection:
            self._outbox.add(Close(self.connection))
        self.connection = connection
        self._relay.detach()
        counts = {"joined": self._members.joined, "ready": self._members.ready}
        self.tell({"type": "state", "phase": phase, **counts, "steady": now.steady})
        for message in self._journal[max(0, after) :]:
            self.tell(message)

    def leave(self) -> None:
        """The supervisor is gone."""
        self.connection = None
        self._relay.detach()

    def turn_out(self) -> None:
        """The supervisor's connection seems dead: it may come back on another one."""
        if self.connection is not None:
            self._outbox.add(Close(self.connection))
            self.leave()

    def pull(self, message: Message) -> None:
        """The supervisor says how much it keeps of each stream: all members go on from there."""
        self._relay.pull(message["offsets"], message.get("streams", STREAMS))
        for member in self._members:
            if member.connection is not None:
                self.order_streams(member.rank, member.connection)

    def order_streams(self, node: int, connection: int) -> None:
        """Let a member go on from where its streams stand here, if anybody wants them."""
        if self._relay.active:
            self._outbox.tell({"type": "pull", **self._relay.order(node)}, connection)

    def acknowledge(self, message: Message) -> None:
        """The supervisor keeps more now: pass it on to the nodes concerned."""
        for node, offsets in self._relay.acknowledge(message["offsets"]).items():
            member = self._members[node].connection
            if member is not None:
                self._outbox.tell({"type": "ack", "offsets": offsets}, member)

    def passes(self, node: int, chunk: Message, size: int) -> bool:
        """Whether a chunk goes to the supervisor now."""
        return self._relay.passes(node, chunk, size)
