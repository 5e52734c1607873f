"""The leader's vote by which all ranks of a gang stop at the same step, before a preemption or a deadline.

Pure: it takes numbers and times and returns decisions.

1. A notice says why the gang has to stop and how many seconds are left.
2. The leader orders the nodes to hold. Each reports how many of its processes have ever called `should_stop()`, and in
   which call each waiting process is.
3. When all of these processes wait, the highest of their calls is decided on: from this call on, `should_stop()` is
   True on all ranks.

A gang that is to grow is asked in the same way (`grow`), with nothing to lose: if not all of its processes come to wait
soon after the first, they go on, and are asked again later, with more patience. It never gets the stop signal. Whether
it is to grow may be taken back until a call is decided on.

If no process calls `should_stop()`, or not all of them come to wait in time, a preempted gang gets the stop signal,
with the grace period that is left. Before a deadline nothing follows, since the deadline itself stops the gang.
Processes that listen for SIGUSR2 have been sent it by then. To leave them time, the stop signal is sent at the last
moment.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ..protocol.messages import DEADLINE, DONE, FAILED, GROWING, LOST, PREEMPTED
from ..quick_dataclass import dataclass

MARGIN = 3.0
"""Seconds that are reserved for signals and messages in transit."""
LEAST_GRACE = 1.0
COPYING = 0.5
"""The share of the remaining time that is reserved, at most, for the last copy of checkpoints."""

FIRST_PATIENCE, LONGEST_PATIENCE = 5.0, 160.0
"""Seconds for which processes of a gang that is to grow wait for the others: at first, and after several rounds."""
PAUSES = 4.0
"""How much longer than that the pause before the next round is."""
_WAIT_LONGER = 60.0
"""Seconds that processes would wait beyond that, so that it is the leader who ends a round."""
ANSWER_SECONDS = 1800.0
"""How long after a gang is asked no more to grow its good end may still be the answer to a SIGUSR2 sent before."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Order nodes to let their processes wait in `should_stop()`, at most this many seconds.

    Attributes:
        round: How many holds there were before.
        growing: Whether it is only so that the gang may grow.
    """

    seconds: float
    round: int = 0
    growing: bool = False


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
        kind: "preempted" or "deadline" after a notice, "growing" if the gang is to grow, else ""; preemption takes
            precedence over a deadline, and both over growth.
        reason: For users; the last one if there is none now.
        open: Whether nodes are holding their processes.
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
        self._round = -1
        self._hold_anew = False
        self._signalled = False
        self._answers_until = -math.inf
        self._patience = FIRST_PATIENCE
        self._next_round = -math.inf
        self._waits_since: float | None = None
        self.kind = ""
        self.reason = ""
        self.open = False
        self.decided: int | None = None
        self.stopping = False

    def notice(self, kind: str, reason: str, seconds: float, now: float) -> Step | None:
        """Handles a notice that `seconds` are left. Returns the next step, if there is one.

        A second notice of the same kind can only shorten the remaining time.
        """
        if kind == DEADLINE and self.kind == GROWING and self.decided is not None:
            # It ends by itself, and whether time is left for another attempt is decided then.
            return None
        interrupts = self.open and self.kind == GROWING
        if self.kind == GROWING:
            self._answers_until = now + ANSWER_SECONDS
        if kind == PREEMPTED or self.kind in ("", GROWING):
            until = now + max(0.0, seconds)
            again = self.kind == kind
            least = 0.0
            if again:
                # Each node of a gang gives its notice. What was reserved is given up only for time that is lost.
                until = min(self._until, until)
                least = self._copying - (self._until - until)
            self._until = until
            self._margin = min(MARGIN, seconds / 4)
            copying = max(least, COPYING * max(0.0, until - now))
            self._copying = min(self._copying if again else self._after_stop, copying)
            self.kind, self.reason = kind, self.reason if again else reason
        if interrupts:
            # Processes that wait already would not wait for longer than they were told.
            self.open = False
            self._hold_anew = self._last_moment > now
            return Resume(None) if self._hold_anew or kind != PREEMPTED else self._stop(now)
        if self.open or self.stopping or self.decided is not None or kind != self.kind:
            return None
        left = self._last_moment - now
        if left <= 0:
            return self._stop(now) if kind == PREEMPTED else None
        return self._hold(left)

    def grow(self, reason: str, now: float) -> Step | None:
        """Asks the gang to stop so that it may grow. May be repeated. Returns the next step, if there is one."""
        if self.kind not in ("", GROWING) or self.stopping:
            return None
        self.kind = GROWING
        self.reason = reason if self.decided is None else self.reason
        return self._grow(now)

    def stop_growing(self, now: float) -> Step | None:
        """Asks for it no more, unless a call was decided on. Returns the next step, if there is one.

        Processes that got SIGUSR2 cannot be told. They may be about to end, or may not care for it at all.
        """
        if self.kind != GROWING or self.decided is not None:
            return None
        self.kind = ""
        self._answers_until = now + ANSWER_SECONDS
        if math.isinf(self._next_round):
            self._next_round = now
        if not self.open:
            return None
        self.open = False
        return Resume(None)

    def tell(
        self,
        rank: int,
        callers: int,
        waiting: Collection[int],
        listeners: int = 0,
        hold: int | None = None,
    ) -> None:
        """Records the report of a node.

        Args:
            rank: The node.
            callers: How many of its processes call `should_stop()`.
            waiting: The calls of those that wait.
            listeners: How many processes got SIGUSR2.
            hold: The `round` of the hold that it is about; None for the present one. The report of an earlier one comes
                too late.
        """
        self._signalled = self._signalled or listeners > 0
        if hold in (None, self._round):
            self._told[rank] = _Told(callers, tuple(waiting), listeners)

    def step(self, ranks: Collection[int], now: float) -> Step | None:
        """Returns the next step, if there is one. Call it after every report, and regularly.

        Args:
            ranks: The ranks of the nodes that are not lost.
        """
        if self.kind == GROWING:
            return self._decide_to_grow(ranks, now)
        if self._hold_anew:
            self._hold_anew = False
            if (left := self._last_moment - now) > 0:
                return self._hold(left)
        if self.open and all(rank in self._told for rank in ranks):
            told = [self._told[rank] for rank in ranks]
            callers = sum(each.callers for each in told)
            waiting = [call for each in told for call in each.waiting]
            if not callers and not self._signalled:
                return self._give_up(now)
            if callers and len(waiting) == callers:
                return self._decide(waiting)
        over = bool(self.kind) and now >= self._last_moment and not self.stopping
        if over and (self.open or self.kind == PREEMPTED):
            return self._give_up(now)
        return None

    def _decide(self, waiting: Collection[int]) -> Step:
        self.open = False
        self.decided = max(waiting)
        return Resume(self.decided)

    def _decide_to_grow(self, ranks: Collection[int], now: float) -> Step | None:
        if not self.open:
            return self._grow(now)
        told = [self._told[rank] for rank in ranks if rank in self._told]
        callers = sum(each.callers for each in told)
        waiting = [call for each in told for call in each.waiting]
        if len(told) == len(ranks):
            if callers and len(waiting) == callers:
                return self._decide(waiting)
            if not callers:
                # Those that listen have been told, and need not be told again.
                return self._end_round(math.inf if self._signalled else now + self._pause)
        if waiting and self._waits_since is None:
            self._waits_since = now
        if self._waits_since is not None and now - self._waits_since >= self._patience:
            next_round = now + self._pause
            self._patience = min(LONGEST_PATIENCE, 2 * self._patience)
            return self._end_round(next_round)
        return None

    def _grow(self, now: float) -> Step | None:
        """Begins the next round, if it is time for it."""
        if self.open or self.decided is not None or now < self._next_round:
            return None
        self._waits_since = None
        return self._hold(self._patience + _WAIT_LONGER)

    def _end_round(self, next_round: float) -> Step:
        self.open = False
        self._next_round = next_round
        return Resume(None)

    @property
    def _pause(self) -> float:
        return PAUSES * self._patience

    def _hold(self, seconds: float) -> Step:
        self.open = True
        self._told.clear()
        self._round += 1
        return Hold(seconds, self._round, self.kind == GROWING)

    def _give_up(self, now: float) -> Step:
        self.open = False
        return self._stop(now) if self.kind == PREEMPTED else Resume(None)

    def outcome(self, usual: str, now: float) -> str:
        """Returns the outcome of the gang, given the outcome without a notice.

        After a notice of preemption, failed workers and lost nodes do not count against the task. If all workers ended
        well, they may have ended early or have been complete. They count as stopped early if a call was decided on. So
        they do in a preempted gang with processes that listen for SIGUSR2: only these know whether they were complete,
        and another attempt is better than taking a partial run for a complete one. So do those that were told to stop
        so that the gang may grow, for some time also after it is asked no more. While it is asked, workers that fail
        after they were told are no failure either, for example because others have ended.
        """
        if usual == DONE:
            if self.decided is not None or (self._signalled and self.kind in (PREEMPTED, GROWING)):
                return self.kind
            return GROWING if self._signalled and now < self._answers_until else usual
        told = self.decided is not None or self._signalled
        if usual == FAILED and self.kind == GROWING and told:
            return GROWING
        return PREEMPTED if usual in (FAILED, LOST) and self.kind == PREEMPTED else usual

    @property
    def _last_moment(self) -> float:
        """The latest time at which the stop signal must be sent."""
        if self.kind == DEADLINE:
            return self._until - self._margin
        return self._until - self._grace - self._copying - MARGIN

    def _stop(self, now: float) -> StopNow:
        self.stopping = True
        self.open = False
        return StopNow(max(LEAST_GRACE, self._until - now - self._copying - MARGIN))
