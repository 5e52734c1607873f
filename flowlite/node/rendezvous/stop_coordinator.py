"""Connects the leader's vote on stopping (`stop_vote.py`) to the messages of nodes and the events of the gang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol import messages as m
from ..protocol.messages import GangSettings, Message, MessageError
from .actions import LeaderTime, Outbox
from .membership import Members, MemberState
from .stop_vote import Hold, Resume, Step, StopNow, Vote
from .supervisor_session import SupervisorSession

_KINDS = (m.PREEMPTED, m.DEADLINE)


class StopCoordinator:
    """Stops a gang at one step when its machines will be preempted, when its time is nearly over, or so that it grows.

    Attributes:
        grace: Seconds from the stop signal to SIGKILL; longer than usual if the time before a preemption allows it.
    """

    def __init__(
        self,
        settings: GangSettings,
        outbox: Outbox,
        members: Members,
        session: SupervisorSession,
        stop: Callable[[str, str, LeaderTime], None],
    ) -> None:
        """
        Args:
            stop: Called with (outcome, reason, now) to begin to stop the gang.
        """
        self._settings = settings
        self._outbox = outbox
        self._members = members
        self._session = session
        self._stop = stop
        self._vote = Vote(settings.grace, settings.after_stop)
        self._noticed: set[tuple[int, str]] = set()
        self._hold_until = 0.0
        self._round = -1
        self._growing = False
        self._stoppable = False
        self.grace = settings.grace

    def notice(self, member: MemberState, message: Message, phase: str, now: LeaderTime) -> None:
        """Handles the report of a node that it will be preempted, or of the leader's node that the deadline is near."""
        kind, seconds = str(message["kind"]), float(message["seconds"])
        if kind not in _KINDS:
            raise MessageError(f"notice of {kind[:40]!r} is not known")
        if (member.rank, kind) in self._noticed or phase in (m.STOPPING, m.ENDED):
            return
        self._noticed.add((member.rank, kind))
        text = f"{self._settings.name(member.rank)}: {message['reason']}"
        if kind == m.PREEMPTED:
            left = {"text": f"{text}; {seconds:.0f} s are left", "seconds": seconds}
            self._session.record("preempting", now, **left, **member.who)
        if phase == m.RUNNING:
            self._follow(self._vote.notice(kind, text, seconds, now.steady), now)
        elif kind == m.PREEMPTED:
            self._stop(m.PREEMPTED, text, now)

    def calls(self, member: MemberState, message: Message, now: LeaderTime) -> None:
        """Handles the report of a node on which of its processes wait, and in which calls."""
        listeners, hold = message.get("listeners", 0), message.get("round")
        self._vote.tell(member.rank, message["callers"], message["waiting"], listeners, hold)
        self.tick(now)

    def stoppable(self, now: LeaderTime) -> None:
        """Records that workers could be asked to stop. Once is enough, however many nodes report it."""
        if not self._stoppable:
            self._stoppable = True
            self._session.record("stoppable", now)

    def grow(self, reason: str, now: LeaderTime) -> None:
        """Asks the workers to stop so that the gang may grow; with an empty reason, asks them no more."""
        self._follow(
            self._vote.grow(reason, now.steady) if reason else self._vote.stop_growing(now.steady),
            now,
        )

    def tick(self, now: LeaderTime) -> None:
        """Advances the vote. Call it regularly while workers run."""
        if self._vote.kind:
            there = [member.rank for member in self._members if not member.lost]
            self._follow(self._vote.step(there, now.steady), now)

    def catch_up(self, connection: int, now: float) -> None:
        """Sends a node that has rejoined the current state of the vote."""
        if self._vote.open:
            self._outbox.tell(self._hold(now), connection)
        elif self._round >= 0:
            # It may have missed the end of a hold, even of one for which there is no reason any more.
            self._outbox.tell(self._resume(), connection)

    def outcome(self, usual: str, now: LeaderTime) -> str:
        """Returns the outcome of the gang, given the outcome without a notice."""
        return self._vote.outcome(usual, now.steady)

    def end(self, usual: str, why: str, now: LeaderTime) -> tuple[str, str]:
        """Returns outcome and reason of the gang, given those without a notice."""
        outcome = self.outcome(usual, now)
        told = why in ("", self._vote.reason)
        reason = self._vote.reason if told else f"{self._vote.reason} ({why})"
        return outcome, why if outcome == usual else reason

    def _follow(self, step: Step | None, now: LeaderTime) -> None:
        match step:
            case Hold(seconds, hold, growing):
                self._hold_until = now.steady + seconds
                self._round, self._growing = hold, growing
                self._tell_all(self._hold(now.steady))
            case Resume(call):
                if call is not None:
                    text = (
                        f"should_stop() is True from its call {call} on, on all ranks that call it"
                    )
                    self._session.record("should_stop", now, text=text, call=call)
                self._tell_all(self._resume())
            case StopNow(grace):
                self.grace = grace
                self._stop(m.PREEMPTED, self._vote.reason, now)

    def _hold(self, now: float) -> dict[str, Any]:
        return {
            "type": "hold",
            "seconds": max(0.0, self._hold_until - now),
            "round": self._round,
            "growing": self._growing,
        }

    def _resume(self) -> dict[str, Any]:
        return {"type": "resume", "call": self._vote.decided or 0}

    def _tell_all(self, message: dict[str, Any]) -> None:
        self._outbox.tell(message, *self._members.connections())
