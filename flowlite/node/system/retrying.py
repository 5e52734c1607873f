"""How long a proof before GO is tried again: an outage passes, a firewall does not.

A connection that cannot be made looks the same in both. What tells them apart is whether the other node is heard
meanwhile, through the connection that every node has with the leader:

    it is heard, but this way was never open, for `NEVER_REACHED` seconds     a firewall
    it refuses, for `REFUSED` seconds                                         a firewall, or nobody listens
    it is not heard, or this way was open before                              an outage: tried until the join time-out
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

from ..config import fencing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Value = TypeVar("Value")

_BUSY = (429, 500, 502, 503, 504)

AGAIN = 0.5
"""Pause between two tries."""
TRY_SECONDS = 5.0
"""For one connection to be made."""
NEVER_REACHED = fencing.FENCE_AFTER * fencing.SUPERVISED
"""Longer than it takes to find out that a node is gone, which must not be taken for a closed port."""
REFUSED = 15.0
FIREWALL = "a firewall"
"""The words that only a way has that was never open."""
HEARD = 3.0
"""A node that was heard so many seconds ago counts as heard now."""

PASSING_ERRORS = frozenset(
    {
        errno.EIO,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.ENETDOWN,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ESTALE,
        errno.EREMOTEIO,
        errno.EAGAIN,
    }
)
"""What a file system of the network, or a connection, says while its network is gone."""


class RetryWindow:
    """One way to another node, while it is being tried.

    Args:
        silence: Seconds since the other node was last heard.
        longest: Seconds an outage may last.

    Attributes:
        reached: Whether the way was open at any time.
    """

    def __init__(self, silence: Callable[[], float], longest: float) -> None:
        self._silence = silence
        self._began = time.monotonic()
        self._longest = longest
        self._closed_since: float | None = None
        self._refused_since: float | None = None
        self.reached = False

    def failed(self, error: BaseException) -> str:
        """Takes note of a try that came to nothing; gives what is wrong, or "" as long as it is to be tried again."""
        now, silence = time.monotonic(), self._silence()
        refused = isinstance(error, ConnectionRefusedError)
        self._refused_since = (self._refused_since or now) if refused else None
        closed = silence <= HEARD and not self.reached
        self._closed_since = (self._closed_since or now) if closed else None
        if self._refused_since is not None and now - self._refused_since >= REFUSED:
            return f"cannot be reached: Connection refused; {FIREWALL} refuses it?"
        if self._closed_since is not None and now - self._closed_since >= NEVER_REACHED:
            return (
                f"does not answer: {FIREWALL} drops what is sent there, or there is no way. It was never reached, "
                "though its node, or the leader, was heard all the time"
            )
        if now - self._began >= self._longest:
            known = "was reached before" if self.reached else f"was heard {silence:.0f} s ago"
            return f"{known}, and does not answer now: the network is out ({_named(error)})"
        return ""


def is_passing(error: BaseException) -> bool:
    """Whether a file system or a connection that says so may be well again by itself."""
    if isinstance(error, TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in PASSING_ERRORS


def passing_cause(error: BaseException) -> BaseException | None:
    """What in an error, or behind it, may be over soon: a network that is out, a service that is overloaded."""
    seen: BaseException | None = error
    while seen is not None:
        reason = getattr(seen, "reason", None)
        for each in (seen, reason):
            if isinstance(each, BaseException) and (is_passing(each) or _no_name_server(each)):
                return each
        if getattr(seen, "status", 0) in _BUSY:
            return seen
        seen = seen.__cause__
    return None


def through_outages(do: Callable[[], Value], trial: RetryWindow) -> Value:
    """Does something that blocks again and again, as long as what is in the way may be over soon.

    Raises:
        Exception: What it raised at last.
    """
    while True:
        try:
            done = do()
        except OSError as error:
            cause = passing_cause(error)
            if cause is None or trial.failed(cause):
                raise
            time.sleep(AGAIN)
        else:
            trial.reached = True
            return done


def _no_name_server(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN


def _named(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or "no answer")
