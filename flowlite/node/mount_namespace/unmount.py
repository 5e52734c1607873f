"""Lists and removes the mounts below a directory. Nothing is ever deleted through a mount."""

from __future__ import annotations

import os
import sys

from ..system import processes
from ..system.libc import MNT_DETACH, Libc

_SECONDS = 10.0


def mounted_below(directory: str | os.PathLike[str]) -> list[str]:
    """Returns the mount points at or below a directory, the deepest first, as this process sees them, dead or alive."""
    top = os.path.abspath(directory)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [_unquoted(line.split(" ", 5)[4]) for line in file]
    except OSError:
        return []
    below = [point for point in points if point == top or point.startswith(f"{top}/")]
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
    # Imported here because it is slow to import, and there is hardly ever something to unmount.
    from shutil import which

    for name in ("fusermount3", "fusermount"):
        program = which(name, path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin:/usr/local/bin")
        if program is not None:
            return _ends_well([program, "-u", "-z", path])
    return False


def _ends_well(command: list[str]) -> bool:
    import subprocess

    try:
        done = processes.run_within(_SECONDS, command)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _by_system_call(path: str) -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    try:
        Libc().call("umount2", os.fsencode(path), MNT_DETACH)
    except OSError:
        return False
    return True


def _unquoted(text: str) -> str:
    """Returns a path from mountinfo, with escapes such as \\040 (blank) decoded."""
    parts = text.split("\\")
    rest = (chr(int(part[:3], 8)) + part[3:] for part in parts[1:])
    return parts[0] + "".join(rest)
