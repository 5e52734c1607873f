"""One member per node rank: who sits there, and what the leader knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..protocol.messages import GangSettings

RECONNECT_GRACE = 0.5
"""Seconds a node whose connection broke has to come back before it is suspected."""

_NAMED = 10


@dataclass(slots=True)
class MemberState:
    """What the leader knows of one node.

    Attributes:
        connection: Number of the live connection, or None.
        heard: When the node last said anything (leader's steady clock).
        parted: When its connection broke.
        first: When it first joined.
        notices: Number of the last notice it gave.
        prepared: What it said when it was ready, to be compared: see `agreement.COMPARED`.
    """

    rank: int
    instance: str
    incarnation: str = ""
    connection: int | None = None
    address: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    first: float = 0.0
    heard: float = 0.0
    parted: float | None = None
    ready: bool = False
    started: bool = False
    stopped: bool = False
    lost: bool = False
    suspect: bool = False
    notices: int = 0
    prepared: dict[str, Any] = field(default_factory=dict)

    @property
    def joined(self) -> bool:
        """Whether a node has ever sat here in this epoch."""
        return bool(self.incarnation)

    @property
    def who(self) -> dict[str, Any]:
        """How events name the node."""
        return {"instance": self.instance, "rank": self.rank}

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for when the gang stops."""
        return self.stopped or self.lost or not self.joined

    def describe(self, began: float, now: float) -> str:
        """What is known of the node, for people."""
        if not self.joined:
            return "never heard of"
        host = f" (host {self.facts['hostname']})" if self.facts.get("hostname") else ""
        text = f"joined from {self.address}{host} after {self.first - began:.1f} s"
        if self.connection is None and self.parted is not None:
            return f"{text}, its connection broke {now - self.parted:.1f} s ago"
        return f"{text}, last heard {now - self.heard:.1f} s ago"


class Members:
    """All members of a gang, with the counts that would cost too much to take at every message."""

    def __init__(self, settings: GangSettings) -> None:
        self._by_rank = [MemberState(rank, name) for rank, name in enumerate(settings.roster)]
        self._by_instance = {member.instance: member for member in self._by_rank}
        self._by_connection: dict[int, MemberState] = {}
        self._heard_nobody = float("-inf")
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
        """The member of an instance id; None if it is not in the roster."""
        return self._by_instance.get(instance)

    def of_connection(self, connection: int) -> MemberState | None:
        """The member that this connection speaks for."""
        return self._by_connection.get(connection)

    def connections(self) -> tuple[int, ...]:
        """Every live connection of a member."""
        return tuple(self._by_connection)

    @property
    def connected(self) -> int:
        """How many nodes are on the line."""
        return len(self._by_connection)

    def take(self, member: MemberState, connection: int, incarnation: str, now: float) -> None:
        """Seat a node, or member it again. Another incarnation starts from nothing."""
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
        """The node's connection is gone."""
        if member.connection is not None:
            self._by_connection.pop(member.connection, None)
        member.connection = None
        member.parted = now

    def mark_ready(self, member: MemberState) -> None:
        """The node has prepared."""
        self.ready += not member.ready
        member.ready = True

    def addresses(self) -> list[str]:
        """What the nodes reach each other by: as the leader sees them, but never a loopback that it alone sees."""
        leader = self._settings.leader_address
        return [
            leader
            if member.rank == 0 or member.address.startswith(("127.", "::1"))
            else member.address
            for member in self._by_rank
        ]

    def excuse(self, pause: float) -> None:
        """The leader did not listen for so long: that silence is nobody's."""
        for member in self._by_rank:
            member.heard += pause

    def doubtful(self, now: float) -> Iterator[tuple[MemberState, str]]:
        """Nodes that may be gone, each with what speaks for it."""
        for member in self._by_rank:
            silence = now - member.heard
            if member.settled or member.suspect:
                continue
            if silence >= self._settings.lost_after:
                yield member, f"no sign of life for {silence:.0f} s"
            elif member.parted is not None and now - member.parted >= RECONNECT_GRACE:
                yield member, "its connection to the leader broke, and it has not come back"

    def given_up(self, now: float, longest: float) -> Iterator[tuple[MemberState, str]]:
        """Nodes that have been silent for so long, each with what that means."""
        for member in self._by_rank:
            silence = now - member.heard
            if not member.settled and silence >= longest:
                stopped = ", so that it has stopped its workers itself" if member.started else ""
                yield member, f"silent for {silence:.0f} s{stopped}"

    def note_silence(self, now: float) -> None:
        """Notes whether the leader hears none of several others just now, and has not for long."""
        others = [member for member in self._by_rank[1:] if member.joined]
        after = self._settings.lost_after
        if len(others) > 1 and all(now - member.heard >= after for member in others):
            self._heard_nobody = now

    def leader_was_cut_off(self, member: MemberState) -> bool:
        """Whether a node is silent since a time when the leader heard nobody: then it is the leader that was cut off.

        Others may have come back meanwhile, a moment before this one.
        """
        return self.leader_heard_nobody(member.heard)

    def leader_heard_nobody(self, since: float) -> bool:
        """Whether there was a time after `since` at which the leader heard none of several others."""
        return self._heard_nobody > since

    def name(self, member: MemberState) -> str:
        """How the node is called in messages to people."""
        return self._settings.name(member.rank)

    def list_with(self, members: Sequence[MemberState], began: float, now: float) -> str:
        """Nodes by name, each with what is known of it."""
        shown = [
            f"{self.name(member)}: {member.describe(began, now)}" for member in members[:_NAMED]
        ]
        more = f"; and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        return "; ".join(shown) + more
