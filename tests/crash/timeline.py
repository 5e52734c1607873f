"""A clock that never waits: time jumps to whatever comes next.

`Timeline` is the clock of a whole simulation: of the program (`flowlite.state.clock`), of the clouds (their timers),
and of the event loop that supervisors run on.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from tests.attack.deciding import JumpingLoop

_MONOTONIC_BEGINS = 10_000.0
RESOLUTION = 1e-6
"""Seconds below which two times are the same."""


@dataclass(order=True)
class Due:
    """Something that happens at its time, unless it is cancelled before."""

    at: float
    number: int
    what: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """It will not happen."""
        self.cancelled = True


class Timeline:
    """The time, and what is due; a `clock.Source`, and the `Timers` of a cloud.

    Attributes:
        now: Seconds since it began.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._began = time.time()
        self._due: list[Due] = []
        self._numbers = itertools.count()

    # As a source of the program's times

    def since_boot(self) -> float:
        """As `clock.since_boot`."""
        return _MONOTONIC_BEGINS + self.now

    def monotonic(self) -> float:
        """As `clock.monotonic`."""
        return _MONOTONIC_BEGINS + self.now

    def wall(self) -> float:
        """As `clock.wall`."""
        return self._began + self.now

    def sleep(self, seconds: float) -> None:
        """Has that time pass."""
        self.advance(self.now + seconds)

    # As timers

    def after(self, seconds: float, what: Callable[[], None]) -> Due:
        """Calls it when so many seconds have passed."""
        due = Due(self.now + max(seconds, 0.0), next(self._numbers), what)
        heapq.heappush(self._due, due)
        return due

    def advance(self, to: float) -> None:
        """Has everything happen until then."""
        while self._due and self._due[0].at <= to:
            due = heapq.heappop(self._due)
            self.now = max(self.now, due.at)
            if not due.cancelled:
                due.what()
        self.now = max(self.now, to)

    def forget(self) -> None:
        """Nothing is due any more."""
        self._due.clear()


class Loop(JumpingLoop):
    """An event loop whose time is that of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        super().__init__()
        # A nanosecond is nothing beside half a year of seconds, and what is due now would not be done.
        self._clock_resolution = RESOLUTION

    @property
    def now(self) -> float:
        """The time."""
        return self._timeline.now

    @now.setter
    def now(self, to: float) -> None:
        self._timeline.advance(to)


class AtOnce(Executor):
    """Does what it is given before `submit` returns."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Calls it."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*given, **named))
        except Exception as error:
            future.set_exception(error)
        return future


class Background:
    """What a cloud does besides answering, on a timeline. As `flowlite.testing.cloud.mithril.timer.Background`."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def timer(self) -> _Part:
        """A part of the timeline that ends with its world."""
        return _Part(self._timeline)

    def workers(self) -> Executor:
        """Nobody waits for anything."""
        return AtOnce()


class _Part:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._closed = False

    def after(self, seconds: float, what: Callable[[], None]) -> Due:
        """Calls it then, unless this is closed before."""
        return self._timeline.after(seconds, lambda: None if self._closed else what())

    def close(self) -> None:
        """Nothing of this happens any more."""
        self._closed = True
