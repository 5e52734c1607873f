"""Which trouble with a host may pass, and which ends what waits for it."""

from __future__ import annotations

import errno
import threading
import time

from flowlite.errors import NodeUnreachable

# What a host's disk says, and goes on saying until somebody does something about it.
_LASTING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    }
)


class Patience:
    """For how long each host has given an answer that only somebody can change, over all tries of this process."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_left(self, host: str, error: Exception) -> bool:
        """Whether it makes sense to wait for a host that has just failed.

        Args:
            host: Anything that names it.
        """
        limit = _limit(error)
        with self._lock:
            if limit is None:
                self._since.pop(host, None)
                return True
            since = self._since.setdefault(host, time.monotonic())
            return time.monotonic() - since < limit

    def forget(self, host: str) -> None:
        """The host has answered as it should."""
        with self._lock:
            self._since.pop(host, None)


def lasts(error: Exception) -> bool:
    """Whether somebody has to change something, rather than that it may pass by itself."""
    return _limit(error) is not None


def _limit(error: Exception) -> float | None:
    """Seconds to wait while a host fails so; None for as long as it takes."""
    if isinstance(error, NodeUnreachable):
        return error.patience
    if isinstance(error, OSError) and error.errno not in _LASTING:
        return None
    return 0.0
