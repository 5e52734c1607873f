"""The leader's vote by which all ranks of a gang stop at the same step, before a preemption or a deadline.

Pure: it takes numbers and times and returns decisions.

1. A notice says why the gang has to stop and how many seconds are left.
2. The leader orders the nodes to hold. Each reports how many of its processes have ever called `should_stop()`, and in
   which call each waiting process is.
3. When all of these processes wait, the highest of their calls is decided on: from this call on, `should_stop()` is
   True on all ranks.

If no process calls `should_stop()`, or not all of them come to wait in time, a preempted gang gets the stop signal,
with the grace period that is left. Before a deadline nothing follows, since the deadline itself stops the gang.
Processes that listen for SIGUSR2 have been sent it by then. To leave them time, the stop signal is sent at the last
moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MARGIN = 3.0
"""Seconds that are reserved for signals and messages in transit."""
LEAST_GRACE = 1.0
COPYING = 0.5
"""The share of the remaining time that is reserved, at most, for the last copy of checkpoints."""

PREEMPTED, DEADLINE = "preempted", "deadline"


@dataclass(frozen=True, slots=True)
class Hold:
    """Order nodes to let their processes wait in `should_stop()`, at most this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Let waiting processes continue. `should_stop()` is True from this call on; None: it stays False."""

    call: int | None


@dataclass(frozen=True, slots=True)
class StopNow:
    """Send the workers the stop signal, with this grace period in seconds."""

    grace: float


Step = Hold | Resume | StopNow


@dataclass(frozen=True, slots=True)
class _Told:
    callers: int
    waiting: tuple[int, ...]
    listeners: int


class Vote:
    """The vote of one gang. It does nothing until `notice`.

    Attributes:
        kind: "preempted" or "deadline" after a notice, else ""; preemption takes precedence over a deadline.
        reason: For users.
        decided: The call from which on all ranks stop; None until it is decided.
        stopping: Whether the stop signal was ordered.
    """

    def __init__(self, grace: float, after_stop: float) -> None:
        """
        Args:
            grace: Seconds from the stop signal to SIGKILL, as usual.
            after_stop: Seconds that a node may need after its workers have ended, for the last copy of checkpoints.
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
        """Whether nodes are holding their processes."""
        return self._open

    def notice(self, kind: str, reason: str, seconds: float, now: float) -> Step | None:
        """Handles a notice that `seconds` are left. Returns the next step, if there is one.

        A second notice of the same kind can only shorten the remaining time.
        """
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
        """Records the report of a node: how many processes call, the calls of those that wait, and the listeners."""
        self._told[rank] = _Told(callers, tuple(waiting), listeners)

    def step(self, ranks: Collection[int], now: float) -> Step | None:
        """Returns the next step, if there is one. Call it after every report, and regularly.

        Args:
            ranks: The ranks of the nodes that are not lost.
        """
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
        """Returns the outcome of the gang, given the outcome without a notice.

        After a notice of preemption, failed workers and lost nodes do not count against the task. If all workers ended
        well, they may have ended early or have been complete. They count as stopped early if a call was decided on. So
        they do in a preempted gang with processes that listen for SIGUSR2: only these know whether they were complete,
        and another attempt is better than taking a partial run for a complete one.

        Args:
            usual: The outcome without a notice.
            words: The outcomes by the names "done", "failed", "lost", "preempted" and "deadline".
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
        """The latest time at which the stop signal must be sent."""
        if self.kind == DEADLINE:
            return self._until - self._margin
        return self._until - self._grace - self._copying - MARGIN

    def _stop(self, now: float) -> StopNow:
        self.stopping = True
        self._open = False
        return StopNow(max(LEAST_GRACE, self._until - now - self._copying - MARGIN))
