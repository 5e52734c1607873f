"""The members of a gang, one for each node rank, and what the leader knows of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..protocol.messages import GangSettings

RECONNECT_GRACE = 0.5
"""Seconds that a node has to reconnect after its connection broke, before it is suspected."""

_NAMED = 10


class MemberState:
    """The leader's record of one member.

    Attributes:
        incarnation: Names the agent process that joined; "" before the first join.
        connection: Number of the open connection, or None.
        heard: When its last message came (leader's monotonic clock, as all times here).
        before_silence: When the message came that was the last one before its latest long silence.
        back: When it was heard again after that.
        parted: When its connection broke.
        first: When it first joined.
        notices: Number of the last notice it sent.
        invalid_reports: How many of its messages `join` and `ready` were invalid.
        prepared: Facts from its report that it is ready, to be compared: see `consistency.COMPARED`.
    """

    __slots__ = (
        *("rank", "instance", "incarnation", "connection", "address", "facts", "prepared"),
        *("first", "heard", "before_silence", "back", "parted"),
        *("ready", "started", "stopped", "lost", "suspect", "notices", "invalid_reports"),
    )

    def __init__(self, rank: int, instance: str) -> None:
        self.rank = rank
        self.instance = instance
        self.incarnation = ""
        self.connection: int | None = None
        self.address = ""
        self.facts: dict[str, Any] = {}
        self.prepared: dict[str, Any] = {}
        self.first = self.heard = 0.0
        self.before_silence = self.back = float("-inf")
        self.parted: float | None = None
        self.ready = self.started = self.stopped = self.lost = self.suspect = False
        self.notices = self.invalid_reports = 0

    @property
    def joined(self) -> bool:
        """Whether the node has ever joined in this attempt."""
        return bool(self.incarnation)

    @property
    def who(self) -> dict[str, Any]:
        """The fields by which events name the node."""
        return {"instance": self.instance, "rank": self.rank}

    @property
    def settled(self) -> bool:
        """Whether a stopping gang need not wait for this node."""
        return self.stopped or self.lost or not self.joined

    def describe(self, began: float, now: float) -> str:
        """Returns what is known of the node, as text for users."""
        if not self.joined:
            return "never heard of"
        host = f" (host {self.facts['hostname']})" if self.facts.get("hostname") else ""
        text = f"joined from {self.address}{host} after {self.first - began:.1f} s"
        if self.connection is None and self.parted is not None:
            return f"{text}, its connection broke {now - self.parted:.1f} s ago"
        return f"{text}, last heard {now - self.heard:.1f} s ago"


class Members:
    """All members of a gang, with counts that would be too expensive to compute at every message.

    Attributes:
        joined: How many have ever joined.
        ready: How many have prepared.
    """

    def __init__(self, settings: GangSettings) -> None:
        self._by_rank = [MemberState(rank, name) for rank, name in enumerate(settings.roster)]
        self._by_instance = {member.instance: member for member in self._by_rank}
        self._by_connection: dict[int, MemberState] = {}
        self._heard_nobody = float("-inf")
        self._well_until = float("-inf")
        self._settings = settings
        self.joined = 0
        self.ready = 0

    def __iter__(self) -> Iterator[MemberState]:
        return iter(self._by_rank)

    def __len__(self) -> int:
        return len(self._by_rank)

    def __getitem__(self, rank: int) -> MemberState:
        return self._by_rank[rank]

    def of_instance(self, instance: str) -> MemberState | None:
        """Returns the member with an instance id; None if the roster does not have it."""
        return self._by_instance.get(instance)

    def of_connection(self, connection: int) -> MemberState | None:
        """Returns the member of a connection, or None."""
        return self._by_connection.get(connection)

    def connections(self) -> tuple[int, ...]:
        """Returns the numbers of all open connections of members."""
        return tuple(self._by_connection)

    @property
    def connected(self) -> int:
        """How many members are connected."""
        return len(self._by_connection)

    def take(self, member: MemberState, connection: int, incarnation: str, now: float) -> None:
        """Records that a member has joined or rejoined. A new incarnation has to prepare again."""
        if member.incarnation != incarnation:
            if not member.joined:
                self.joined += 1
                member.first = now
            self.ready -= member.ready
            member.ready = member.started = False
            member.incarnation = incarnation
        member.connection = connection
        member.parted = None
        self._by_connection[connection] = member

    def part(self, member: MemberState, now: float) -> None:
        """Records that the member's connection was closed."""
        if member.connection is not None:
            self._by_connection.pop(member.connection, None)
        member.connection = None
        member.parted = now
        self._well_until = min(self._well_until, now + RECONNECT_GRACE)

    def mark_ready(self, member: MemberState) -> None:
        """Records that the member has prepared."""
        self.ready += not member.ready
        member.ready = True

    def addresses(self) -> list[str]:
        """Returns the addresses by which nodes reach each other, by rank.

        They are the addresses that the leader sees. A loopback address, which only the leader could use, is replaced
        by the leader's own.
        """
        leader = self._settings.leader_address
        return [
            leader
            if member.rank == 0 or member.address.startswith(("127.", "::1"))
            else member.address
            for member in self._by_rank
        ]

    def excuse(self, pause: float) -> None:
        """Subtracts from every member's silence a pause in which the leader itself did not run."""
        for member in self._by_rank:
            member.heard += pause

    def all_well(self, now: float) -> bool:
        """Whether no member has been silent or disconnected for so long that it matters.

        It is known beforehand until when that holds, so that a tick does not look at each of thousands of members.
        """
        if now < self._well_until:
            return True
        soonest = min(self._settings.lost_after, self._settings.fence_after)
        joined = [member for member in self._by_rank if member.joined]
        times = [min((member.heard for member in joined), default=now) + soonest]
        times += [
            member.parted + RECONNECT_GRACE
            for member in joined
            if member.parted is not None and not member.suspect and not member.settled
        ]
        self._well_until = min(now + soonest, *times)
        return now < self._well_until

    def doubtful(self, now: float) -> Iterator[tuple[MemberState, str]]:
        """Yields nodes that become suspects now, each with the reason."""
        for member in self._by_rank:
            silence = now - member.heard
            if member.settled or member.suspect:
                continue
            if silence >= self._settings.lost_after:
                yield member, f"no sign of life for {silence:.0f} s"
            elif member.parted is not None and now - member.parted >= RECONNECT_GRACE:
                yield member, "its connection to the leader broke, and it has not come back"

    def given_up(self, now: float, longest: float) -> Iterator[tuple[MemberState, str]]:
        """Yields nodes that have been silent for `longest` seconds, each with what that means."""
        for member in self._by_rank:
            silence = now - member.heard
            if not member.settled and silence >= longest:
                stopped = ", so that it has stopped its workers itself" if member.started else ""
                yield member, f"silent for {silence:.0f} s{stopped}"

    def hear(self, member: MemberState, now: float) -> None:
        """Notes that a message of a member came."""
        if now - member.heard >= self._settings.lost_after:
            member.before_silence, member.back = member.heard, now
        member.heard = now

    def note_silence(self, now: float) -> None:
        """Notes the time if none of several other nodes has been heard for `lost_after`."""
        others = [member for member in self._by_rank[1:] if member.joined]
        after = self._settings.lost_after
        if len(others) > 1 and all(now - member.heard >= after for member in others):
            self._heard_nobody = now

    def leader_was_cut_off(self, member: MemberState) -> bool:
        """Whether a node became silent when the leader heard no node at all, so that the leader itself was cut off.

        Other nodes may have reconnected since, a moment before this one. It may itself have been heard again for a
        moment: an agent that has fenced itself leaves as soon as it has said so.
        """
        only_a_moment = member.heard - member.back < self._settings.lost_after
        return self.leader_heard_nobody(member.before_silence if only_a_moment else member.heard)

    def leader_heard_nobody(self, since: float) -> bool:
        """Whether there was a time after `since` at which the leader heard none of several other nodes."""
        return self._heard_nobody > since

    def name(self, member: MemberState) -> str:
        """The name of the node in messages to users."""
        return self._settings.name(member.rank)

    def list_with(self, members: Sequence[MemberState], began: float, now: float) -> str:
        """Returns the names of nodes, each with what is known of it, as text for users."""
        shown = [
            f"{self.name(member)}: {member.describe(began, now)}" for member in members[:_NAMED]
        ]
        more = f"; and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        return "; ".join(shown) + more
