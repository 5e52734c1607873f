"""The leader's part in a withdrawal: a gang that will lose a node, or reach its deadline, stops at one step.

Pure: numbers and times in, a decision out. "Notice" says that something is up and how many seconds are left. Nodes are
told to hold; each tells how many of its processes have ever called `should_stop()`, and at which call those stand that
wait. When all wait, the latest of these calls is the one from which on everybody is told to stop. Where nobody calls,
or not everybody comes to wait in time, a preempted gang gets the stop signal with the grace that is left; at a deadline
nothing follows, since the deadline comes by itself. Processes that listen for SIGUSR2 have got it, and have time for
what they do then: the stop signal comes at the last moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MARGIN = 3.0
"""Seconds kept back for signals and messages on their way."""
LEAST_GRACE = 1.0
COPYING = 0.5
"""The part of what is left that is kept for the last copy of checkpoints, if that may take so long."""

PREEMPTED, DEADLINE = "preempted", "deadline"


@dataclass(frozen=True, slots=True)
class Hold:
    """Nodes are to have their processes wait, so many seconds at most."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Resume:
    """It is True from this call on; None: it stays False, and whoever waits goes on."""

    call: int | None


@dataclass(frozen=True, slots=True)
class StopNow:
    """The workers get the stop signal, and so many seconds."""

    grace: float


Step = Hold | Resume | StopNow


@dataclass(frozen=True, slots=True)
class _Told:
    callers: int
    waiting: tuple[int, ...]
    listeners: int


class Vote:
    """The withdrawal of one gang; quiet until `notice`.

    Attributes:
        kind: "preempted" or "deadline" once there was notice; preemption outweighs a deadline.
        reason: For people.
        decided: The call from which on all ranks stop.
    """

    def __init__(self, grace: float, after_stop: float) -> None:
        """
        Args:
            grace: What workers usually get from the stop signal to SIGKILL.
            after_stop: What a node may need once they have ended, for a last copy of checkpoints.
        """
        self._grace = grace
        self._after_stop = after_stop
        self._until = 0.0
        self._margin = MARGIN
        self._copying = after_stop
        self._told: dict[int, _Told] = {}
        self._open = False
        self.kind = ""
        self.reason = ""
        self.decided: int | None = None
        self.stopping = False

    @property
    def open(self) -> bool:
        """Whether nodes hold."""
        return self._open

    def notice(self, kind: str, reason: str, seconds: float, now: float) -> Step | None:
        """Something is up. A second notice makes time shorter, never longer."""
        if kind == PREEMPTED or not self.kind:
            until = now + max(0.0, seconds)
            again = self.kind == kind
            self._until = min(self._until, until) if again else until
            self._margin = min(MARGIN, seconds / 4)
            self._copying = min(self._after_stop, COPYING * max(0.0, self._until - now))
            self.kind, self.reason = kind, self.reason if again else reason
        if self._open or self.stopping or self.decided is not None or kind != self.kind:
            return None
        left = self._last_moment - now
        if left <= 0:
            return self._stop(now) if kind == PREEMPTED else None
        self._open = True
        self._told.clear()
        return Hold(left)

    def tell(self, rank: int, callers: int, waiting: Collection[int], listeners: int = 0) -> None:
        """What a node says of its processes."""
        self._told[rank] = _Told(callers, tuple(waiting), listeners)

    def step(self, ranks: Collection[int], now: float) -> Step | None:
        """What follows now, for the nodes that still have workers. Call it whenever something was told, and often."""
        if self._open and all(rank in self._told for rank in ranks):
            told = [self._told[rank] for rank in ranks]
            callers = sum(each.callers for each in told)
            waiting = [call for each in told for call in each.waiting]
            if not callers and not self._listened:
                return self._give_up(now)
            if callers and len(waiting) == callers:
                self._open = False
                self.decided = max(waiting)
                return Resume(self.decided)
        over = bool(self.kind) and now >= self._last_moment and not self.stopping
        if over and (self._open or self.kind == PREEMPTED):
            return self._give_up(now)
        return None

    def _give_up(self, now: float) -> Step:
        self._open = False
        return self._stop(now) if self.kind == PREEMPTED else Resume(None)

    def outcome(self, usual: str, words: Mapping[str, str]) -> str:
        """What the gang ends with, where it would end with `usual`; `words` are done, failed, lost and the rest.

        After notice of preemption nothing that breaks counts against the task. Workers that ended well were told to
        stop only if the call was decided on; or if they listen for the signal, of which only they know what it means:
        rather than take what was cut short for complete, a preempted gang goes on.
        """
        if usual == words["done"]:
            told = self.decided is not None or (self.kind == PREEMPTED and self._listened)
            return words.get(self.kind, usual) if told else usual
        broken = usual in (words["failed"], words["lost"])
        return words[PREEMPTED] if broken and self.kind == PREEMPTED else usual

    @property
    def _listened(self) -> bool:
        return any(each.listeners for each in self._told.values())

    @property
    def _last_moment(self) -> float:
        """When the stop signal must go out at the latest."""
        if self.kind == DEADLINE:
            return self._until - self._margin
        return self._until - self._grace - self._copying - MARGIN

    def _stop(self, now: float) -> StopNow:
        self.stopping = True
        self._open = False
        return StopNow(max(LEAST_GRACE, self._until - now - self._copying - MARGIN))
