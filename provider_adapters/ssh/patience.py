"""How long to wait for a host that fails: some errors pass by themselves, others need a person."""

from __future__ import annotations

import errno
import threading
import time

from flowlite.errors import NodeUnreachable

# Errors of a host's disk that persist until a person fixes them.
_LASTING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
        *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    }
)


class Patience:
    """Since when each host has failed with an error that only a person can fix, over all tries of this process."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_left(self, host: str, error: Exception) -> bool:
        """Whether it makes sense to wait for a host that has just failed.

        Args:
            host: Any key that identifies the host.
        """
        limit = _limit(error)
        with self._lock:
            if limit is None:
                self._since.pop(host, None)
                return True
            since = self._since.setdefault(host, time.monotonic())
            return time.monotonic() - since < limit

    def forget(self, host: str) -> None:
        """Resets a host that has answered normally."""
        with self._lock:
            self._since.pop(host, None)


def lasts(error: Exception) -> bool:
    """Whether a person has to fix something, since the error does not pass by itself."""
    return _limit(error) is not None


def _limit(error: Exception) -> float | None:
    """Seconds to wait while a host fails with this error; None for no limit."""
    if isinstance(error, NodeUnreachable):
        return error.patience
    if isinstance(error, OSError) and error.errno not in _LASTING:
        return None
    return 0.0
