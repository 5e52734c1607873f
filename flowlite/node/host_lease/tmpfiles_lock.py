"""Keeps the files of a task that runs from programs that clean /tmp by age."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time

_LOCK_TRIES, _LOCK_PAUSE = 20, 0.1


def keep_from_cleaners(directory: str) -> None:
    """Keeps what is below a directory of /tmp from being removed for its age, as long as this process lives.

    On many systems, systemd-tmpfiles removes daily what nobody has read or written for ten days: the program and the
    environments of a task that runs on. It leaves alone what is below a directory with a lock (tmpfiles.d(5)).
    """
    if not _is_below_tmp(directory):
        # A lock on a network file system may wait for its server.
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    for _ in range(_LOCK_TRIES):
        try:
            # It stays open: the lock ends with this process, and with those forked from it.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # A cleaner is looking at it now.
            time.sleep(_LOCK_PAUSE)
        except OSError:
            break
    os.close(descriptor)


def _is_below_tmp(directory: str) -> bool:
    """Whether a directory is below one in which everybody may create files."""
    above = os.path.realpath(directory)
    while above != "/":
        above = os.path.dirname(above)
        with contextlib.suppress(OSError):
            if os.stat(above).st_mode & stat.S_ISVTX:
                return True
    return False
