"""The leader's side of the rendezvous as a pure state machine: it takes messages and times and returns actions.

It has no sockets, no clock and no randomness, so `RendezvousServer` and the simulation run the same code. Times are
`LeaderTime`s of the leader. Decisions depend on `steady` only; `unix` is only written into events.

    gathering --all joined, all agree--> preparing --all ready and connected, port closed--> running
        \\___________________________________\\__________________________\\--> stopping --> ended

Drops, delays and repetitions of messages do no harm: when a member joins or rejoins, the leader sends it every order
that holds for it now, and the member repeats all its reports. Both sides ignore what they know already.
"""

from __future__ import annotations

from typing import Any

from ..config import fencing
from ..protocol import messages as m
from ..protocol.message_check import FROM_MEMBER, FROM_SUPERVISOR, check
from ..protocol.messages import GangSettings, Message, MessageError
from . import consistency, outliers
from .actions import (
    Action,
    Close,
    CloseMaster,
    LeaderTime,
    OthersEnded,
    Outbox,
    Peer,
    ProveMaster,
    WorkerEnded,
)
from .admission import Refusal, admit
from .consistency import disagreements, warnings
from .heartbeat import Heartbeat
from .linger import Linger
from .membership import Members, MemberState
from .stop_coordinator import StopCoordinator
from .supervisor_session import SupervisorSession
from .worker_exits import WorkerExits

_STRANGERS_NAMED = 4
_INVALID_REPORTS = 5
"""After so many of one node its agent is taken not to know better. It tries again within a second."""


class Rendezvous:
    """The leader's state machine for one attempt of a gang.

    Attributes:
        phase: The phase of the gang (`messages.PHASES`).
        outcome: How the gang ends (`messages.OUTCOMES`), from the moment it begins to stop; None before.
        reason: One line for users that goes with the outcome.
        first_failure: The report of the worker whose failure stopped the gang; None if none did.
    """

    def __init__(
        self,
        settings: GangSettings,
        now: LeaderTime,
        volume_token: str = "",
        *,
        copies_for_all: bool = False,
    ) -> None:
        """
        Args:
            copies_for_all: The leader's node copies files that all nodes write, for the last time when every worker has
                ended. A gang that ends well waits for `copied`.
        """
        self._settings = settings
        self._copies_for_all = copies_for_all
        self._copied = not copies_for_all
        self._others_ended = False
        # Whether the leader's last copy of checkpoints has the files of all nodes.
        self._copies_everything = False
        self._members = Members(settings)
        self._outbox = Outbox(settings)
        self._session = SupervisorSession(settings, self._outbox, self._members, now)
        self._token = volume_token
        self._began = now.steady
        self._since = now.steady
        self._heartbeat = Heartbeat(settings, now.steady)
        self._worker_exits = WorkerExits(settings)
        self.first_failure: dict[str, Any] | None = None
        self._linger = Linger(settings, self._outbox, self._members, self._session)
        self._stop_coordinator = StopCoordinator(
            settings, self._outbox, self._members, self._session, self._stop
        )
        self._order: dict[str, Any] | None = None
        self._go: dict[str, Any] | None = None
        self._turned_away: dict[str, int] = {}
        self._holding_master = False
        self.phase = m.GATHERING
        self.outcome: str | None = None
        self.reason = ""

    # Inputs. Each method returns the actions to take, in order.

    def receive(
        self, connection: int, peer: Peer, message: Message, now: LeaderTime
    ) -> list[Action]:
        """Handles a message of an authenticated peer; a `chunk` is given to `relay` instead.

        Raises:
            MessageError: The message is invalid; close the connection.
        """
        allowed = FROM_MEMBER if peer.role == "member" else FROM_SUPERVISOR
        try:
            kind = check(message, allowed, self._settings.task)
        except MessageError as error:
            if not self._gives_up(connection, peer, message, error, now):
                raise
            return self._outbox.take()
        if message["attempt"] != self._settings.attempt:
            self._other_epoch(connection, peer, message, now)
        elif peer.role == "supervisor":
            self._from_supervisor(connection, kind, message, now)
        elif kind == "join":
            self._join(connection, peer, message, now)
        else:
            member = self._members.of_connection(connection)
            if member is None:
                raise MessageError(f"{kind} before join")
            self._hear(member, now)
            self._from_member(member, kind, message, now)
        return self._outbox.take()

    def relay(self, connection: int, chunk: Message, size: int, now: LeaderTime) -> int | None:
        """Returns the connection to which a member's chunk of `size` bytes is forwarded, or None to drop it.

        Raises:
            MessageError: The chunk is invalid; close the connection.
        """
        check(chunk, FROM_MEMBER, self._settings.task)
        member = self._members.of_connection(connection)
        if member is None or chunk["attempt"] != self._settings.attempt:
            raise MessageError("a chunk before join, or of another attempt")
        self._hear(member, now)
        chunk["node"] = member.rank
        passes = self._session.relay.passes(member.rank, chunk, size)
        return self._session.connection if passes else None

    def disconnected(self, connection: int, now: LeaderTime) -> list[Action]:
        """Notes that a connection was closed."""
        member = self._members.of_connection(connection)
        if member is not None:
            self._members.part(member, now.steady)
            self._linger.finish_if_alone()
        elif connection == self._session.connection:
            self._session.leave()
        return self._outbox.take()

    def master_proved(self, port: int, now: LeaderTime) -> list[Action]:
        """Notes that the leader listens on the master port, and orders the members to prepare."""
        self._holding_master = True
        if self.phase == m.PREPARING:
            self._order = {"master_addr": self._settings.leader_address, "master_port": port}
            self._session.record("preparing", now, **self._order)
            self._tell_all(self._prepare_order())
        else:
            self._close_master()
        return self._outbox.take()

    def master_failed(self, error: str, now: LeaderTime) -> list[Action]:
        """Stops the gang, because the leader cannot listen on any master port."""
        self._stop(m.CHECKS, f"{self._settings.name(0)} cannot hold a master port: {error}", now)
        return self._outbox.take()

    def notice(self, rank: int, kind: str, text: str, now: LeaderTime) -> list[Action]:
        """Records a notice of the leader's own node, before anything that follows; `kind` as in `messages.NOTICES`."""
        self._notice(self._members[rank], kind, m.shorten(text, 2000), now)
        return self._outbox.take()

    def copied(self, now: LeaderTime) -> list[Action]:
        """Notes that the leader's node has made the last copy, or could not."""
        self._copied = True
        if self._copies_everything and self.phase != m.ENDED:
            # Until this event, the end of all workers is not a good end of the gang, also if the leader is lost.
            self._session.record("copied", now)
        self._end_if_complete(now)
        return self._outbox.take()

    def turned_away(self, address: str) -> None:
        """Counts a connection that failed authentication. The error for missing nodes names its address."""
        if address in self._turned_away or len(self._turned_away) < _STRANGERS_NAMED:
            self._turned_away[address] = self._turned_away.get(address, 0) + 1

    def silence_of(self, rank: int, now: LeaderTime) -> float:
        """Seconds since the last message of a node."""
        return now.steady - self._members[rank].heard

    def tick(self, now: LeaderTime) -> list[Action]:
        """Handles everything that depends on time. Call it a few times per heartbeat interval."""
        pause = self._heartbeat.pause(now.steady)
        if pause:
            self._members.excuse(pause)
            self._session.heard += pause
        if self._heartbeat.due(now.steady):
            self._tell_all({"type": "beat"})
            self._session.tell({"type": "beat", "steady": now.steady})
        if now.steady - self._session.heard > self._settings.lost_after:
            self._session.turn_out()
        if self.phase == m.ENDED:
            self._linger.tick(now.steady)
        else:
            self._watch(now)
            self._time_out(now)
        if self._copies_for_all and not self._others_ended and not self._others_run(now):
            self._others_ended = True
            self._copies_everything = self._worker_exits.others_ended
            self._outbox.add(OthersEnded())
        return self._outbox.take()

    # Members.

    def _join(self, connection: int, peer: Peer, message: Message, now: LeaderTime) -> None:
        member = admit(self._members, self.phase, peer, message)
        if isinstance(member, Refusal):
            self._turn_down(connection, member, now)
            return
        incarnation = message["incarnation"]
        again = member.incarnation == incarnation
        if member.connection is not None and member.connection != connection:
            self._outbox.add(Close(member.connection))
            self._members.part(member, now.steady)
        self._members.take(member, connection, incarnation, now.steady)
        member.facts = message["facts"]
        member.address = peer.address
        self._hear(member, now)
        welcome = {"type": "welcome", "rank": member.rank, "roster": self._settings.digest}
        # While nodes are missing, the member does not need its welcome at once.
        self._outbox.tell(welcome, connection, urgent=self.phase != m.GATHERING)
        if not again:
            self._session.record(
                "joined", now, **member.who, address=member.address, facts=member.facts
            )
            for text in warnings(self._settings, member.rank, member.facts, now.unix):
                self._session.record("warning", now, text=text, **member.who)
        self._catch_up(member, now)
        if self.phase == m.GATHERING and self._members.joined == len(self._members):
            self._all_joined(now)
        self._go_if_ready(now)

    def _gives_up(
        self, connection: int, peer: Peer, message: Message, error: MessageError, now: LeaderTime
    ) -> bool:
        """Stops a gang that waits for a node whose reports are all invalid: its agent would repeat them for ever.

        Returns:
            Whether the gang was stopped.
        """
        member = self._members.of_instance(peer.name) if peer.role == "member" else None
        waits = self.phase in (m.GATHERING, m.PREPARING)
        if member is None or not waits or message.get("type") not in ("join", "ready"):
            return False
        member.invalid_reports += 1
        if member.invalid_reports < _INVALID_REPORTS:
            return False
        reason = (
            f"{self._members.name(member)} cannot start, since the leader does not understand what it reports: "
            f"{error}. This is a defect of flowlite: report it, with agent.log of that node"
        )
        self._refuse(connection, reason)
        self._stop(m.CHECKS, reason, now)
        return True

    def _turn_down(self, connection: int, refusal: Refusal, now: LeaderTime) -> None:
        ended = f" ({self.outcome}: {self.reason})" if self.phase == m.ENDED else ""
        self._refuse(connection, f"{refusal.reason}{ended}")
        if refusal.member is not None and refusal.warning:
            self._session.record("warning", now, text=refusal.reason, **refusal.member.who)
        if refusal.member is not None and refusal.doubt:
            self._suspect(refusal.member, refusal.doubt, now)

    def _catch_up(self, member: MemberState, now: LeaderTime) -> None:
        """Sends a member that has just joined every order that holds for it now."""
        assert member.connection is not None
        if self.phase == m.PREPARING and self._order is not None and not member.ready:
            self._outbox.tell(self._prepare_order(), member.connection)
        if self.phase == m.RUNNING and self._go is not None:
            self._outbox.tell(self._go, member.connection)
            self._stop_coordinator.catch_up(member.connection, now.steady)
        if self.phase == m.STOPPING and not member.stopped:
            self._outbox.tell(self._stop_order(), member.connection)
        if self.phase == m.ENDED:
            if not member.stopped and self.outcome != m.DONE:
                self._outbox.tell(self._stop_order(), member.connection)
            self._outbox.tell(self._ended_message(), member.connection)
        self._session.order_streams(member)
        if self._linger.given is not None:
            self._outbox.tell({"type": "release"}, member.connection)

    def _from_member(
        self, member: MemberState, kind: str, message: Message, now: LeaderTime
    ) -> None:
        if kind == "ready" and self.phase == m.PREPARING and not member.ready:
            self._members.mark_ready(member)
            facts = dict(message["facts"])
            # Long lists are compared, but not recorded in the event.
            member.prepared = {
                name: facts.pop(name) for name in consistency.COMPARED if name in facts
            }
            self._session.record("ready", now, **member.who, facts=facts)
            self._go_if_ready(now)
        elif kind == "unready":
            # A network outage is not the user's mistake, so such an end may be retried.
            before = m.MISSING if message.get("passing") is True else m.CHECKS
            if message.get("sick") is True:
                before = m.SICK
                text = f"{self._members.name(member)}: {message['error']}"
                self._session.record("sick", now, text=text, **member.who)
            outcome = m.ERROR if self._go else before
            self._stop(outcome, f"{self._members.name(member)}: {message['error']}", now)
        elif kind == "started" and not member.started:
            member.started = True
            if self.phase != m.ENDED:
                self._session.record("started", now, **member.who)
        elif kind == "worker":
            self._worker(member, message, now)
        elif kind == "halt":
            outcome = m.STOP_OUTCOMES.get(message["kind"], m.ERROR)
            reason = f"{self._members.name(member)}: {message['reason']}"
            if message["kind"] == "fenced":
                # A member that reconnects after fencing reports a silence of about `fence_after` that ended just now.
                since = now.steady - self._settings.fence_after - self._settings.lost_after
                if self._members.leader_heard_nobody(since):
                    reason = self._why_the_leader_was_cut_off()
            self._stop(outcome, reason, now)
        elif kind == "notice" and message["number"] > member.notices:
            member.notices = message["number"]
            self._notice(member, message["kind"], message["text"], now)
        elif kind == "vanish":
            self._stop_coordinator.notice(member, message, self.phase, now)
        elif kind == "calls" and self.phase == m.RUNNING:
            self._stop_coordinator.calls(member, message, now)
        elif kind == "stoppable" and self.phase == m.RUNNING:
            self._stop_coordinator.stoppable(now)
        elif kind == "stopped" and self.phase in (m.STOPPING, m.ENDED) and not member.stopped:
            member.stopped = True
            if self.phase == m.STOPPING:
                self._session.record("stopped", now, **member.who)
            self._end_if_settled(now)

    def _notice(self, member: MemberState, kind: str, text: str, now: LeaderTime) -> None:
        if self.phase != m.ENDED:
            what = kind if kind in m.NOTICES else "warning"
            self._session.record(
                what, now, text=f"{self._members.name(member)}: {text}", **member.who
            )

    def _worker(self, member: MemberState, message: Message, now: LeaderTime) -> None:
        """Records that a worker has ended, and stops or ends the gang where that follows."""
        if self._go is None or self.phase == m.ENDED:
            return
        body = self._worker_exits.add(member.rank, message)
        if body is None:
            return
        self._session.record("worker", now, **body)
        if self._copies_for_all and member.rank > 0:
            self._outbox.add(WorkerEnded(body))
        if self.phase == m.RUNNING and self._worker_exits.first is not None:
            self.first_failure = body
            self._session.record(
                "first_failure", now, **{**body, "reason": self._worker_exits.reason}
            )
            self._stop(m.FAILED, self._worker_exits.reason, now)
        else:
            self._end_if_complete(now)

    def _end_if_complete(self, now: LeaderTime) -> None:
        if self.phase == m.RUNNING and self._worker_exits.complete and self._copied:
            if self._stop_coordinator.outcome(m.DONE, now) == m.DONE:
                self._end(m.DONE, "every worker ended well", now)
            else:
                # The workers ended because `should_stop()` or a signal told them to.
                self._stop(m.DONE, "", now)

    # Phases.

    def _all_joined(self, now: LeaderTime) -> None:
        found = disagreements(self._settings, [member.facts for member in self._members])
        if found:
            self._stop(m.CHECKS, "; ".join(found), now)
            return
        self.phase = m.PREPARING
        self._since = now.steady
        self._outbox.add(ProveMaster())

    def _go_if_ready(self, now: LeaderTime) -> None:
        if self.phase != m.PREPARING or self._order is None:
            return
        everybody = len(self._members)
        if self._members.ready < everybody or self._members.connected < everybody:
            return
        prepared = [member.prepared for member in self._members]
        odd = consistency.differences(self._settings, prepared)
        if odd:
            self._stop(m.CHECKS, "; ".join(odd), now)
            return
        if text := outliers.summary(prepared):
            self._session.record("preflight", now, text=text)
        if slow := outliers.slow_nodes(prepared):
            told = []
            for each in slow:
                member = self._members[each.rank]
                told.append(f"{self._members.name(member)}: {each.why}")
                self._session.record("sick", now, text=told[-1], **member.who)
            self._stop(m.SICK, "; ".join(told), now)
            return
        for text in consistency.oddities(self._settings, prepared):
            self._session.record("warning", now, text=text)
        self._close_master()
        self.phase = m.RUNNING
        addresses = self._members.addresses()
        self._go = {
            "type": "go",
            "roster": self._settings.digest,
            **self._order,
            **m.pack_addresses(addresses),
        }
        self._session.record(
            "go", now, addresses=addresses, copies_for_all=self._copies_for_all, **self._order
        )
        self._tell_all(self._go)

    def _stop(self, outcome: str, reason: str, now: LeaderTime) -> None:
        """Begins to stop the gang, unless it is being stopped already: the first reason counts."""
        if self.phase in (m.STOPPING, m.ENDED):
            return
        self.phase = m.STOPPING
        # It may have texts of many nodes.
        self.outcome, self.reason = self._stop_coordinator.end(outcome, m.shorten(reason), now)
        self._since = now.steady
        self._close_master()
        self._session.record("stopping", now, outcome=self.outcome, reason=self.reason)
        self._tell_all(self._stop_order())
        self._end_if_settled(now)

    def _end_if_settled(self, now: LeaderTime) -> None:
        if self.phase == m.STOPPING and all(member.settled for member in self._members):
            assert self.outcome is not None
            self._end(self.outcome, self.reason, now)

    def _end(self, outcome: str, reason: str, now: LeaderTime) -> None:
        self.phase = m.ENDED
        self.outcome, self.reason = outcome, reason
        self._since = now.steady
        done = outcome == m.DONE
        self._session.record(
            "ended",
            now,
            outcome=outcome,
            reason=reason,
            first_failure=self.first_failure,
            missing=[member.instance for member in self._members if not member.joined],
            unstopped=[
                s.instance for s in self._members if s.joined and not s.stopped and not done
            ],
        )
        self._tell_all(self._ended_message())
        self._linger.begin(now.steady)

    # Time.

    def _watch(self, now: LeaderTime) -> None:
        if not self._members.all_well(now.steady):
            self._look_for_silence(now)
        if self.phase == m.RUNNING:
            self._stop_coordinator.tick(now)

    def _look_for_silence(self, now: LeaderTime) -> None:
        self._members.note_silence(now.steady)
        for member, why in self._members.doubtful(now.steady):
            self._suspect(member, why, now)
        if self.phase in (m.PREPARING, m.RUNNING):
            for member, why in self._members.given_up(now.steady, self._longest_silence()):
                cut_off = self._members.leader_was_cut_off(member)
                self._lose(member, why, now, leader_cut_off=cut_off)

    def _longest_silence(self) -> float:
        """Seconds of silence after which the leader itself declares a node lost."""
        settings = self._settings
        if self.phase == m.PREPARING:
            # No worker runs yet that could run twice, so a network outage may last longer.
            return max(settings.fence_after, settings.join_timeout)
        # A supervisor probes the node itself, and usually decides sooner.
        supervised = self._session.connection is not None
        return settings.fence_after * (fencing.SUPERVISED if supervised else 1.0)

    def _time_out(self, now: LeaderTime) -> None:
        waited = now.steady - self._since
        if self.phase == m.GATHERING and waited >= self._settings.join_timeout:
            missing = [member for member in self._members if not member.joined]
            self._stop(m.MISSING, self._missing("did not join", missing, waited, now), now)
        elif self.phase == m.PREPARING and waited >= self._settings.prepare_timeout:
            late = [s for s in self._members if not s.ready or s.connection is None]
            self._stop(m.MISSING, self._missing("did not get ready", late, waited, now), now)
        elif (
            self.phase == m.STOPPING
            and waited
            >= self._stop_coordinator.grace + self._settings.after_stop + self._settings.lost_after
        ):
            assert self.outcome is not None
            self._end(self.outcome, self.reason, now)

    def _others_run(self, now: LeaderTime) -> bool:
        """Whether the leader's node has to wait for workers of other nodes before it makes its last copy."""
        if self.phase == m.STOPPING:
            # Half of `lost_after` is for the reports of workers that were killed at the end of the grace period. The
            # copy may then take all of `after_stop`.
            limit = self._stop_coordinator.grace + self._settings.lost_after / 2
            late = now.steady - self._since >= limit
            return not late and not all(each.settled for each in self._members if each.rank > 0)
        return self.phase != m.ENDED and not self._worker_exits.others_ended

    def _missing(
        self, what: str, members: list[MemberState], waited: float, now: LeaderTime
    ) -> str:
        known = self._members.list_with(members, self._began, now.steady)
        place = self._settings.leader_address
        return (
            f"{len(members)} of {len(self._members)} nodes {what} within {waited:.0f} s: {known}. "
            f"Look at agent.log of these nodes, and whether they reach the leader at {place}"
            f"{''.join(f'. {text}' for text in self._strangers())}"
        )

    def _strangers(self) -> list[str]:
        found = self._turned_away.items()
        return [f"{n} connections from {ip} could not prove the task's secret" for ip, n in found]

    def _suspect(self, member: MemberState, why: str, now: LeaderTime) -> None:
        if not member.suspect and self.phase != m.ENDED:
            member.suspect = True
            self._session.record("suspect", now, **member.who, why=why)

    def _lose(
        self, member: MemberState, why: str, now: LeaderTime, *, leader_cut_off: bool
    ) -> None:
        """Declares a node lost and stops the gang.

        Args:
            leader_cut_off: The leader's own network failed, and not the node.
        """
        if member.lost or self.phase == m.ENDED:
            return
        member.lost = True
        if leader_cut_off:
            reason = self._why_the_leader_was_cut_off()
        else:
            reason = f"{self._members.name(member)} is lost: {why}"
            self._session.record("lost", now, **member.who, why=why)
        self._stop(m.LOST, reason, now)
        self._end_if_settled(now)

    def _why_the_leader_was_cut_off(self) -> str:
        others, fence = len(self._members) - 1, self._settings.fence_after
        return (
            f"{self._members.name(self._members[0])}, the leader, was cut off from the others: it heard none of the "
            f"{others}, and nodes that do not hear their leader for {fence:.0f} s stop their workers themselves"
        )

    def _hear(self, member: MemberState, now: LeaderTime) -> None:
        self._members.hear(member, now.steady)
        if member.suspect:
            member.suspect = False
            if self.phase != m.ENDED:
                self._session.record("back", now, **member.who)

    # The supervisor.

    def _from_supervisor(
        self, connection: int, kind: str, message: Message, now: LeaderTime
    ) -> None:
        if kind == "attach":
            self._session.attach(connection, message["after"], self.phase, now)
        elif connection != self._session.connection:
            raise MessageError(
                f"{kind} from a supervisor that is not attached; another may have taken over"
            )
        self._session.heard = now.steady
        if kind == "pull":
            self._session.pull(message)
        elif kind == "ack":
            self._session.acknowledge(message)
        elif kind == "stop":
            self._stop(
                m.STOP_OUTCOMES.get(str(message.get("kind")), m.ERROR), message["reason"], now
            )
        elif kind == "lost":
            accused = self._members.of_instance(message["instance"])
            if accused is not None and accused.suspect:
                # If the node answers its supervisor but has no agent, the agent ended because its leader was silent.
                answers = message.get("answers") is True
                cut_off = answers and self._members.leader_was_cut_off(accused)
                self._lose(accused, message["why"], now, leader_cut_off=cut_off)
        elif kind == "grow" and self.phase == m.RUNNING:
            self._stop_coordinator.grow(message["reason"], now)
        elif kind == "release":
            self._linger.asked = True
            if self.phase == m.ENDED:
                self._linger.give(now.steady)

    # Helpers.

    def _other_epoch(self, connection: int, peer: Peer, message: Message, now: LeaderTime) -> None:
        attempt, ours = message["attempt"], self._settings.attempt
        self._refuse(connection, f"this gang is of attempt {ours}, not {attempt}")
        if attempt > ours:
            self._stop(
                m.ERROR, f"superseded: {peer.role} {peer.name} is of attempt {attempt} already", now
            )

    def _refuse(self, connection: int, reason: str) -> None:
        self._outbox.tell({"type": "refuse", "reason": reason}, connection)
        self._outbox.add(Close(connection))

    def _prepare_order(self) -> Message:
        order = {"type": "prepare", **(self._order or {}), "volume_token": self._token}
        ports = [member.facts.get("connectivity") for member in self._members]
        if any(ports):
            order["connectivity"] = m.pack_places(self._members.addresses(), ports)
        return order

    def _stop_order(self) -> Message:
        order: Message = {"type": "stop", "reason": self.reason}
        if self.outcome == m.PREEMPTED:
            order["kind"] = "preempted"
        return {**order, "grace": self._stop_coordinator.grace}

    def _ended_message(self) -> Message:
        return {"type": "ended", "outcome": self.outcome, "reason": self.reason}

    def _close_master(self) -> None:
        if self._holding_master:
            self._holding_master = False
            self._outbox.add(CloseMaster())

    def _tell_all(self, message: Message) -> None:
        self._outbox.tell(message, *self._members.connections())
