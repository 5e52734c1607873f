"""Locks of files that several processes take in turn (`flock`). The kernel releases them when their holder ends."""

from __future__ import annotations

import fcntl
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SHORTEST, _LONGEST = 0.02, 0.25
# A pause is this part of the time that was waited so far: it delays whoever waits by no more than that.
_PART = 0.1


def take(descriptor: int) -> bool:
    """Locks an open file for this process alone. Returns False if another one has it. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait(
    attempt: Callable[[], bool],
    seconds: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Tries to get a lock until it is there, for `seconds` at most. Returns whether it is.

    The kernel would wait for ever. Many processes may wait for one lock, such as the supervisors of a sweep, so that
    each tries less and less often.

    Args:
        attempt: Tries once, and returns whether the lock is there.
    """
    began = monotonic()
    while not attempt():
        waited = monotonic() - began
        if waited > seconds:
            return False
        sleep(min(_LONGEST, max(_SHORTEST, waited * _PART)))
    return True
