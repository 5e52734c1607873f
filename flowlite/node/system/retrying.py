"""Decides how long a check before GO is retried: an outage passes, a firewall does not.

Both make connections fail in the same way. The difference is whether the other node is heard from meanwhile, through
the connection that every node has to the leader:

    heard from, but this path was never open, for `NEVER_REACHED` seconds     a firewall
    the connection is refused, for `REFUSED` seconds                          a firewall, or no process listens
    not heard from, or this path was open before                              an outage: retried until the join timeout
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

from ..config import fencing
from ..quick_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Value = TypeVar("Value")

_BUSY = (429, 500, 502, 503, 504)

AGAIN = 0.5
"""Seconds between two tries."""
TRY_SECONDS = 5.0
"""Timeout for one connection."""
NEVER_REACHED = fencing.FENCE_AFTER * fencing.SUPERVISED
"""Longer than it takes to detect that a node is gone, so that a lost node is not taken for a closed port."""
REFUSED = 15.0
HEARD = 3.0
"""A node that was heard from within this many seconds counts as connected."""

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
"""Errors of network file systems and connections while their network is down."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a path to another node.

    Attributes:
        text: What was seen, for people: a phrase that follows the name of the node.
        firewall: Whether a firewall is the probable cause.
        passing: Whether it may pass by itself.
    """

    text: str
    firewall: bool = False
    passing: bool = True


class RetryWindow:
    """The attempts to open one path to another node.

    Args:
        silence: Returns the seconds since the other node was last heard from.
        longest: Seconds that an outage may last, from the first try that fails.

    Attributes:
        reached: Whether the path was ever open.
    """

    def __init__(self, silence: Callable[[], float], longest: float) -> None:
        self._silence = silence
        self._longest = longest
        self._out_since: float | None = None
        self._closed_since: float | None = None
        self._refused_since: float | None = None
        self.reached = False

    def succeeded(self) -> None:
        """Records that what is tried was done, so that an outage later is another one."""
        self.reached = True
        self._out_since = None

    def failed(self, error: BaseException) -> Trouble | None:
        """Records a failed try. Returns what is wrong, or None if it should be retried."""
        now, silence = time.monotonic(), self._silence()
        self._out_since = self._out_since or now
        refused = isinstance(error, ConnectionRefusedError)
        self._refused_since = (self._refused_since or now) if refused else None
        closed = silence <= HEARD and not self.reached
        self._closed_since = (self._closed_since or now) if closed else None
        if self._refused_since is not None and now - self._refused_since >= REFUSED:
            return Trouble("cannot be reached: Connection refused; a firewall refuses it?", True)
        if self._closed_since is not None and now - self._closed_since >= NEVER_REACHED:
            return Trouble(
                "does not answer: a firewall drops what is sent there, or there is no way. It was never reached, "
                "though its node, or the leader, was heard all the time",
                firewall=True,
            )
        if now - self._out_since >= self._longest:
            known = "was reached before" if self.reached else f"was heard {silence:.0f} s ago"
            return Trouble(
                f"{known}, and does not answer now: the network is out ({_named(error)})"
            )
        return None


def is_passing(error: BaseException) -> bool:
    """Whether the cause of an error of a file system or a connection may be temporary."""
    if isinstance(error, TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in PASSING_ERRORS


def passing_cause(error: BaseException) -> BaseException | None:
    """Returns the temporary cause in an error or its causes (network down, service overloaded), or None."""
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
    """Calls a blocking function, and retries it as long as its errors may be temporary.

    Raises:
        Exception: The error of the last try.
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
            trial.succeeded()
            return done


def _no_name_server(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN


def _named(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or "no answer")
