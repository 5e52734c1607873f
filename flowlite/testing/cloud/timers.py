"""Things that a cloud in the box does later: after a while, or at once but not while its caller waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from flowlite.state import clock


class Pending(Protocol):
    """Something that has not happened yet."""

    def cancel(self) -> None:
        """It will not happen. Again, or too late, is no error."""


class Timers(Protocol):
    """Calls functions at their time."""

    def after(self, seconds: float, what: Callable[[], None]) -> Pending:
        """Calls it once, so many seconds from now."""


class ThreadTimers:
    """A thread for each."""

    def after(self, seconds: float, what: Callable[[], None]) -> Pending:
        """Calls it in a thread of its own."""
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()
        return timer


def utc_now() -> datetime:
    """Now, by the wall clock."""
    return datetime.fromtimestamp(clock.wall(), UTC)
