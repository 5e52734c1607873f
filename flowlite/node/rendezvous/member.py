"""A node's side of the rendezvous as a pure state machine: it takes messages and times and returns actions.

It has no sockets and no clock, so `MemberClient` and the simulation run the same code. `now` is the node's own
monotonic clock; it is never compared with the leader's.

The node's reports (ready, started, workers that ended, stopped) are kept and repeated after every rejoin, so a broken
connection loses none. An order of the leader is carried out once, even if it is received several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import fencing
from ..log_stream.flow_control import StreamSender
from ..protocol import messages as m
from ..protocol.message_check import TO_MEMBER, check
from ..protocol.messages import GangSettings, Message, MessageError
from ..quick_dataclass import dataclass
from .heartbeat import Heartbeat

RELEASED = "released"
REFUSED = "refused"
FENCED = "fenced"


MOST_NOTICES, NOTICE_EVERY = 50, 600.0
"""How many notices one node may send at once, and after how many seconds it may send one more. Others are dropped."""


@dataclass(frozen=True, slots=True)
class SendToLeader:
    """Send a message to the leader."""

    message: Message


@dataclass(frozen=True, slots=True)
class HangUp:
    """Drop the connection, and dial again if the state machine has not finished."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare the node; answer with `prepared` or `unprepared`."""

    order: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """Start the workers; answer with `started` or `unprepared`.

    Attributes:
        go: rank, master_addr, master_port, and the addresses as `messages.unpack_addresses` reads them.
    """

    go: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel preparing, let starting finish, stop the workers and report them; answer with `stopped`.

    Attributes:
        preempted: Whether a node is being taken away.
    """

    reason: str
    grace: float
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class HoldWorkers:
    """Let workers wait in their next call of `should_stop()`, as `StopListener.hold`; answer with `calls`."""

    seconds: float
    round: int = 0
    growing: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseWorkers:
    """Let waiting workers continue. `should_stop()` is True from this call on; 0: it stays False."""

    call: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Continue to send streams: offsets, the window or the files' final sizes have changed."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the node's part in the gang. No worker is left.

    Attributes:
        how: RELEASED, REFUSED or FENCED.
    """

    how: str
    reason: str


MemberAction = (
    SendToLeader | HangUp | Prepare | Start | HoldWorkers | ReleaseWorkers | Stop | Follow | Leave
)


class Member:
    """The state machine of one node in one attempt of a gang.

    Attributes:
        outcome: How the gang ended, once the leader has sent it.
        reason: One line for users that goes with the outcome.
        left: The `Leave` that ended this node's part; None before.
        sender: The offsets of its streams.
    """

    def __init__(self, settings: GangSettings, instance: str, incarnation: str, now: float) -> None:
        self._settings = settings
        self._instance = instance
        self._incarnation = incarnation
        self._rank = settings.rank_of(instance)
        self._ticked = self._noticed = self._heard = now
        self._heartbeat = Heartbeat(settings, now)
        self._hung_up = now
        self._excused_until = now
        self._ever_welcome = False
        self._on_line = False
        self._out: list[MemberAction] = []
        self._prepare_ordered = False
        self._start_ordered = False
        self._stop_ordered = False
        self._stopped = False
        self._leave_after_stop: Leave | None = None
        self._told: dict[str, Message] = {}
        self._notices = 0
        self._notices_left = float(MOST_NOTICES)
        self.sender = StreamSender()
        self.outcome: str | None = None
        self.reason = ""
        self.left: Leave | None = None

    # The connection.

    def connected(self, facts: Mapping[str, Any]) -> list[MemberAction]:
        """Asks to join, over a new authenticated connection to the leader."""
        self._tell(
            {
                "type": "join",
                "instance": self._instance,
                "incarnation": self._incarnation,
                "facts": dict(facts),
            }
        )
        return self._take()

    def disconnected(self) -> list[MemberAction]:
        """Notes that the connection was closed."""
        self._on_line = False
        self.sender.pause()
        return self._take()

    def receive(self, message: Message, now: float) -> list[MemberAction]:
        """Handles a message of the leader.

        Raises:
            MessageError: The message is invalid; drop the connection.
        """
        kind = check(message, TO_MEMBER, self._settings.task)
        if self.left is not None:
            return []
        if message["attempt"] != self._settings.attempt and kind != "refuse":
            if message["attempt"] > self._settings.attempt:
                self._end(Leave(REFUSED, f"the gang is of attempt {message['attempt']} already"))
            return self._take()
        if kind == "welcome" or self._heartbeat.fresh(now):
            self._heard = now
        if kind == "welcome":
            self._welcome(message)
        elif kind == "refuse":
            self._end(Leave(REFUSED, message["reason"]))
        elif not self._on_line:
            raise MessageError(f"{kind} before welcome")
        else:
            self._obey(kind, message)
        return self._take()

    def _welcome(self, message: Message) -> None:
        if message["rank"] != self._rank or message["roster"] != self._settings.digest:
            reason = (
                f"the leader's roster is not ours: it seats {self._instance} at rank {message['rank']}, our place is "
                f"{self._rank}"
            )
            self._end(Leave(REFUSED, reason))
            return
        self._ever_welcome = self._on_line = True
        for told in self._told.values():
            self._tell(told)

    def _obey(self, kind: str, message: Message) -> None:
        if kind == "prepare" and not (self._prepare_ordered or self._stop_ordered):
            self._prepare_ordered = True
            self._out.append(Prepare(m.body_of(message)))
        elif kind == "go":
            self._go(message)
        elif kind == "hold":
            growing = message.get("growing") is True
            hold = HoldWorkers(float(message["seconds"]), int(message.get("round", 0)), growing)
            self._out.append(hold)
        elif kind == "resume":
            self._out.append(ReleaseWorkers(message["call"]))
        elif kind == "stop":
            grace = max(0.0, float(message.get("grace", self._settings.grace)))
            self._stop(message["reason"], grace, preempted=message.get("kind") == "preempted")
        elif kind == "ended":
            self.outcome, self.reason = message["outcome"], message["reason"]
        elif kind == "release":
            self._end(Leave(RELEASED, self.reason))
        elif kind == "pull":
            self.sender.pull(message)
            self._out.append(Follow())
        elif kind == "ack":
            self.sender.acknowledge(message["offsets"])
            self._out.append(Follow())

    def _go(self, message: Message) -> None:
        if self._start_ordered or self._stop_ordered:
            return
        if "ready" not in self._told:
            raise MessageError("go before this node was ready")
        if message["roster"] != self._settings.digest:
            self._end(Leave(REFUSED, "the leader's roster is not ours"))
            return
        self._start_ordered = True
        self._out.append(Start({**m.body_of(message), "rank": self._rank}))

    def silence(self, now: float) -> float:
        """Seconds since the last message of the leader."""
        return now - self._heard

    def silent(self, now: float) -> bool:
        """Whether the leader was never heard, or not for half of `lost_after`."""
        return not self._ever_welcome or now - self._heard >= self._settings.lost_after / 2

    def _stop(self, reason: str, grace: float, *, preempted: bool = False) -> None:
        if not self._stop_ordered:
            self._stop_ordered = True
            self._out.append(Stop(reason, grace, preempted))

    def _end(self, leave: Leave, grace: float | None = None) -> None:
        """Leaves the gang, after this node's workers have been stopped."""
        if self._leave_after_stop is None:
            self._leave_after_stop = leave
        untouched = not (self._prepare_ordered or self._stop_ordered)
        if self._stopped or untouched or self.outcome == m.DONE:
            self.left = self._leave_after_stop
            self._out.append(self.left)
        else:
            self._stop(leave.reason, self._settings.grace if grace is None else grace)

    # Reports of the node.

    def prepared(self, facts: Mapping[str, Any]) -> list[MemberAction]:
        """Reports that `Prepare` is done."""
        if not self._stop_ordered:
            self._report("ready", {"type": "ready", "facts": dict(facts)})
        return self._take()

    def unprepared(
        self, error: str, *, passing: bool = False, sick: bool = False
    ) -> list[MemberAction]:
        """Reports that `Prepare` or `Start` failed. The arguments are those of `PrepareError`."""
        if not self._stop_ordered:
            body = {"type": "unready", "error": m.shorten(error), "passing": passing, "sick": sick}
            self._report("unready", body)
        return self._take()

    def started(self) -> list[MemberAction]:
        """Reports that `Start` is done."""
        self._report("started", {"type": "started"})
        return self._take()

    def worker_ended(self, body: Mapping[str, Any]) -> list[MemberAction]:
        """Reports that a worker has ended; repeated reports of a rank are ignored."""
        name = f"worker {body['rank']}"
        if name not in self._told:
            self._report(name, {**m.shorten_body(body), "type": "worker"})
            self._out.append(Follow())
        return self._take()

    def stopped(self) -> list[MemberAction]:
        """Reports that `Stop` is done: no worker is left."""
        self._stopped = True
        self._report("stopped", {"type": "stopped"})
        if self._leave_after_stop is not None:
            self._end(self._leave_after_stop)
        return self._take()

    def halt(self, kind: str, reason: str) -> list[MemberAction]:
        """Asks the leader to stop the gang."""
        self._report("halt", {"type": "halt", "kind": kind, "reason": m.shorten(reason)})
        return self._take()

    def notice(self, text: str, kind: str = "warning") -> list[MemberAction]:
        """Sends a notice for users. The run goes on."""
        earned = (self._ticked - self._noticed) / NOTICE_EVERY
        self._noticed = self._ticked
        self._notices_left = min(MOST_NOTICES, self._notices_left + earned)
        if self._notices_left >= 1:
            self._notices_left -= 1
            self._notices += 1
            body = {
                "type": "notice",
                "number": self._notices,
                "kind": kind,
                "text": m.shorten(text, 2000),
            }
            # Those before are known to the leader: it is told so many again at most.
            self._told.pop(f"notice {self._notices - MOST_NOTICES}", None)
            self._report(f"notice {self._notices}", body)
        return self._take()

    def vanish(self, kind: str, reason: str, seconds: float) -> list[MemberAction]:
        """Reports that this node will be preempted, or reach its deadline, in this many seconds."""
        body = {"kind": kind, "reason": m.shorten(reason, 2000), "seconds": round(seconds, 3)}
        self._report(f"vanish {kind}", {"type": "vanish", **body})
        return self._take()

    def stoppable(self) -> list[MemberAction]:
        """Reports that a process of this node calls `should_stop()` or listens for SIGUSR2."""
        self._report("stoppable", {"type": "stoppable"})
        return self._take()

    def calls(
        self, callers: int, waiting: list[int], listeners: int, hold: int = 0
    ) -> list[MemberAction]:
        """Reports which processes of this node call `should_stop()`, as `MemberClient.calls`."""
        body = {"callers": callers, "waiting": waiting, "listeners": listeners, "round": hold}
        self._report("calls", {"type": "calls", **body})
        return self._take()

    # Time.

    def tick(self, now: float) -> list[MemberAction]:
        """Handles everything that depends on time. Call it a few times per heartbeat interval."""
        self._ticked = now
        pause = self._heartbeat.pause(now)
        if self.left is not None or self._leave_after_stop is not None:
            return self._take()
        if self._on_line and self._heartbeat.due(now):
            self._tell({"type": "beat"})
        silence = now - self._heard
        if now - max(self._heard, self._hung_up) >= self._settings.lost_after:
            # Perhaps only this connection is dead, and not the leader: dial again.
            self._hung_up = now
            self._out.append(HangUp())
        if pause:
            # Messages that arrived during the pause may be old, so wait for what the leader sends now before fencing.
            self._excused_until = now + 1.5 * self._settings.heartbeat
        elif now >= self._excused_until:
            self._fence(silence)
        return self._take()

    def _fence(self, silence: float) -> None:
        limit = self._settings.fence_after
        if not self._start_ordered:
            # No worker of this node could run a second time elsewhere yet, so a network outage may last longer.
            limit = max(limit, self._settings.join_timeout)
        if not self._ever_welcome:
            reason = f"the leader did not let this node join within {silence:.0f} s"
        else:
            reason = f"the leader has been silent for {silence:.0f} s"
        if silence < limit:
            return
        if self._start_ordered and self.outcome is None:
            self._report("halt", {"type": "halt", "kind": "fenced", "reason": reason})
        self._out.append(HangUp())
        # If the silence lasted longer, the grace period is cut: workers of a replacement may be running by now.
        grace = fencing.grace_left(silence, limit, self._settings.grace)
        self._end(Leave(RELEASED if self.outcome is not None else FENCED, reason), grace)

    # Helpers.

    def _report(self, name: str, message: Message) -> None:
        """Sends a report now if connected, and again after every welcome."""
        self._told[name] = message
        if self._on_line:
            self._tell(message)

    def _tell(self, message: Message) -> None:
        stamped = {**message, "task": self._settings.task, "attempt": self._settings.attempt}
        self._out.append(SendToLeader(stamped))

    def _take(self) -> list[MemberAction]:
        actions, self._out = self._out, []
        return actions
