"""Lists and removes the mounts below a directory. Nothing is ever deleted through a mount."""

from __future__ import annotations

import os
import sys

from ..system import processes
from ..system.libc import MNT_DETACH, Libc
from .mounts import mounts

PROGRAMS = ("fusermount3", "fusermount")
"""What unmounts a file system of FUSE, and mounts it, for users."""
_SECONDS = 10.0


def mounted_below(directory: str | os.PathLike[str]) -> list[str]:
    """Returns the mount points at or below a directory, the deepest first, as this process sees them, dead or alive."""
    top = os.path.abspath(directory)
    below = [each for each, _, _ in mounts() if each == top or each.startswith(f"{top}/")]
    return sorted(below, key=len, reverse=True)


def is_mounted(point: str | os.PathLike[str]) -> bool:
    """Whether something is mounted at a path. Never accesses the path itself, which may hang."""
    return os.path.abspath(point) in mounted_below(point)


def unmount(point: str | os.PathLike[str]) -> bool:
    """Unmounts everything at a path, even if it is dead or busy. True if nothing is mounted there any more."""
    path = os.path.abspath(point)
    for way in (_by_program, _by_system_call):
        # Mounts may be stacked on one mount point.
        for _ in range(8):
            if not is_mounted(path):
                return True
            if not way(path):
                break
    return not is_mounted(path)


def unmount_below(directory: str | os.PathLike[str]) -> list[str]:
    """Unmounts everything at or below a directory. Returns the mount points that could not be unmounted.

    Call this before deleting anything there, since mounted files must not be deleted.
    """
    return [point for point in mounted_below(directory) if not unmount(point)]


def _by_program(path: str) -> bool:
    # Imported here because they are slow to import, and there is hardly ever something to unmount.
    import subprocess
    from shutil import which

    search = f"{os.environ.get('PATH', '')}:/usr/bin:/bin:/usr/local/bin"
    program = next(filter(None, (which(name, path=search) for name in PROGRAMS)), None)
    if program is None:
        return False
    try:
        return processes.run_within(_SECONDS, [program, "-u", "-z", path]).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _by_system_call(path: str) -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    try:
        Libc().call("umount2", os.fsencode(path), MNT_DETACH)
    except OSError:
        return False
    return True
