"""The directories at which volumes are mounted for the workers, where the machine has none.

An agent creates them before its workers start, and removes them when they have ended. Without them the directory above
would have to be hidden by a copy (`namespace.py`), and what a worker writes there would be lost.

They are empty and read-only, which distinguishes them from a user's own directory if an agent was killed before it
could remove them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MODE = 0o555
_WRITING = 0o222


def is_mount_point(path: str) -> bool:
    """Whether a directory was created for a volume to be mounted at."""
    with suppress(OSError):
        return _is_sealed(os.lstat(path), path)
    return False


class MountPoints:
    """The mount points of one agent. Agents of one machine may use the same ones; the last of them removes them."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def make(self, paths: Iterable[str]) -> None:
        """Creates a directory at each path where there is nothing, and where this user may."""
        for path in paths:
            with suppress(OSError):
                self._held[path] = _hold(path)

    def remove(self) -> None:
        """Removes those that no other agent uses. No process may use the volumes any more."""
        for path, descriptor in self._held.items():
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rmdir(path)
            os.close(descriptor)
        self._held.clear()


def _hold(path: str) -> int:
    """Returns a descriptor that keeps a mount point from being removed. Creates it if there is nothing.

    Raises:
        OSError: There is something else, or it cannot be created or locked.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(path, _MODE)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            status = os.fstat(descriptor)
            if not _is_sealed(status, descriptor):
                raise FileExistsError(errno.EEXIST, "is not a mount point", path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(path), status):
                    return descriptor
        except OSError:
            os.close(descriptor)
            raise
        # The last agent that used it has removed it just now.
        os.close(descriptor)


def _is_sealed(status: os.stat_result, directory: str | int) -> bool:
    return not status.st_mode & _WRITING and not os.listdir(directory)
