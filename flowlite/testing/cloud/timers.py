"""Delayed actions of a cloud in a box, including those with no delay that must not block the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from flowlite.state import clock


class Pending(Protocol):
    """An action that has not run yet."""

    def cancel(self) -> None:
        """Prevents the action. Cancelling twice, or too late, is no error."""


class Timers(Protocol):
    """Calls functions after a delay."""

    def after(self, seconds: float, what: Callable[[], None]) -> Pending:
        """Calls `what` once, after `seconds`."""


class ThreadTimers:
    """Timers that use one thread per action."""

    def after(self, seconds: float, what: Callable[[], None]) -> Pending:
        """Calls `what` in a new thread."""
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()
        return timer


def utc_now() -> datetime:
    """The time of the wall clock."""
    return datetime.fromtimestamp(clock.wall(), UTC)
