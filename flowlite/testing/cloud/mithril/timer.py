"""The background work of the cloud: delayed actions, and work on machines, in threads of their own."""

from __future__ import annotations

import heapq
import itertools
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol

from flowlite.state import clock


class Timeline(Protocol):
    """Calls functions after a delay."""

    def after(self, seconds: float, what: Callable[[], None]) -> object:
        """Calls `what` once, after `seconds`."""

    def close(self) -> None:
        """Cancels all pending calls."""


class Background(Protocol):
    """Creates the timer and the workers of one cloud."""

    def timer(self) -> Timeline:
        """The timer for delayed calls."""

    def workers(self) -> Executor:
        """The executor that starts and ends machines."""


class Threads:
    """The background of a cloud in real time."""

    def timer(self) -> Timeline:
        """A timer with a thread of its own."""
        return Timer()

    def workers(self) -> Executor:
        """An executor with enough threads for machines to boot in parallel."""
        return ThreadPoolExecutor(16, thread_name_prefix="mithril-machines")


class Timer:
    """Calls functions at their time, one at a time. Exceptions are printed and do not stop it."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mithril-timer", daemon=True)
        self._thread.start()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Calls `what` once, after `seconds`."""
        with self._changed:
            heapq.heappush(self._due, (clock.monotonic() + seconds, next(self._numbers), what))
            self._changed.notify()

    def close(self) -> None:
        """Cancels all pending calls."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(10)

    def _run(self) -> None:
        while (what := self._next()) is not None:
            try:
                what()
            except Exception:
                traceback.print_exc()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                left = self._due[0][0] - clock.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)
        return None
