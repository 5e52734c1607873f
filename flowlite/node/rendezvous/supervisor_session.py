"""The leader's session with its supervisor: the journal of events, and the relay of streams.

At most one supervisor is attached. A new one takes over; leases in the store decide which one is right. All events are
kept, so a supervisor that attaches gets all those that it lacks.
"""

from __future__ import annotations

from typing import Any

from ..log_stream.flow_control import StreamRelay
from ..protocol.messages import STREAMS, GangSettings, Message, unpack_offsets
from .actions import Close, LeaderTime, Outbox
from .membership import Members, MemberState


class SupervisorSession:
    """The attached supervisor, and the events recorded for it.

    Attributes:
        connection: Number of the supervisor's connection, or None.
        heard: When its last message came (leader's monotonic clock).
        relay: Which chunks are forwarded to it.
    """

    def __init__(
        self, settings: GangSettings, outbox: Outbox, members: Members, now: LeaderTime
    ) -> None:
        self._outbox = outbox
        self._members = members
        self.relay = StreamRelay(settings)
        # Each event, with when it was recorded. Messages are made of them once there is a supervisor.
        self._journal: list[tuple[Message, float]] = []
        self.connection: int | None = None
        self.heard = now.steady

    def record(self, kind: str, now: LeaderTime, **body: Any) -> None:
        """Records an event, and sends it if a supervisor is attached."""
        event = {"seq": len(self._journal) + 1, "time": now.unix, "kind": kind, **body}
        self._journal.append((event, now.steady))
        if self.connection is not None:
            self._tell_event(event, now.steady)

    def tell(self, message: Message) -> None:
        """Sends a message to the supervisor, if one is attached."""
        if self.connection is not None:
            self._outbox.tell(message, self.connection)

    def attach(self, connection: int, after: int, phase: str, now: LeaderTime) -> None:
        """Attaches a supervisor, which takes over, and sends it the phase and the events after number `after`.

        A supervisor that knows of more events than this leader has recorded is refused.
        """
        if after > len(self._journal):
            reason = f"you know of event {after}, this leader of {len(self._journal)} only: it is not the one you knew"
            self._outbox.tell({"type": "refuse", "reason": reason}, connection)
            self._outbox.add(Close(connection))
            return
        if self.connection is not None and self.connection != connection:
            self._outbox.add(Close(self.connection))
        self.connection = connection
        self.relay.detach()
        counts = {"joined": self._members.joined, "ready": self._members.ready}
        self.tell({"type": "state", "phase": phase, **counts, "steady": now.steady})
        for event, steady in self._journal[max(0, after) :]:
            self._tell_event(event, steady)

    def _tell_event(self, event: Message, steady: float) -> None:
        self.tell({"type": "event", "event": event, "steady": steady})

    def leave(self) -> None:
        """Detaches the supervisor."""
        self.connection = None
        self.relay.detach()

    def turn_out(self) -> None:
        """Closes the supervisor's connection, which seems dead. The supervisor may reconnect."""
        if self.connection is not None:
            self._outbox.add(Close(self.connection))
            self.leave()

    def pull(self, message: Message) -> None:
        """Lets all members send their streams from the offsets that the supervisor has."""
        self.relay.pull(unpack_offsets(message), message.get("streams", STREAMS))
        for member in self._members:
            self.order_streams(member)

    def order_streams(self, member: MemberState) -> None:
        """Lets a member send its streams from the current offsets, if a supervisor pulls them."""
        if self.relay.active and member.connection is not None:
            order = self.relay.order(member.rank)
            self._outbox.tell({"type": "pull", **order}, member.connection)

    def acknowledge(self, message: Message) -> None:
        """Forwards the supervisor's acknowledgement to the nodes that it concerns."""
        for node, offsets in self.relay.acknowledge(message["offsets"]).items():
            member = self._members[node].connection
            if member is not None:
                self._outbox.tell({"type": "ack", "offsets": offsets}, member)
