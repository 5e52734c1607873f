"""Files and directories that only their owner can read, and files that survive a crash of this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_SYNCED_AT_A_TIME = 16


def private(path: str, flags: int) -> int:
    """Opens a file for `open(…, opener=private)`. One that is created can be read by its owner only."""
    return os.open(path, flags, 0o600)


def make_durable(directories: Iterable[Path], prefix: str) -> None:
    """Syncs to disk all files of directories whose names have a prefix, and the directories themselves. Raises OSError.

    The disk is asked for many files at a time, which takes little longer than for one.
    """
    # Imported here, since most programs write no file that way.
    from concurrent.futures import ThreadPoolExecutor

    paths: list[Path] = []
    for directory in directories:
        paths += (path for path in directory.iterdir() if path.name.startswith(prefix))
        paths.append(directory)
    with ThreadPoolExecutor(_SYNCED_AT_A_TIME) as threads:
        for _ in threads.map(sync, paths):
            pass


def home_directory() -> Path | None:
    """The user's home directory; None for a user without one, as any number may be a user in a container."""
    try:
        return Path("~").expanduser().resolve()
    except RuntimeError:
        return None


def directories_above(directory: Path) -> Iterator[Path]:
    """The parent directories, from the nearest on, in which only this user can have created files.

    The search ends before a directory that belongs to another user, that all users may write to (such as /tmp), or that
    is on another file system, and after the home directory.
    """
    try:
        at = directory.resolve(strict=True)
        device, top = at.stat().st_dev, home_directory()
        while at not in (top, at.parent):
            at = at.parent
            found = at.stat()
            shared = found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH
            if found.st_dev != device or shared:
                return
            yield at
    except (OSError, RuntimeError):
        return


def sync(path: Path) -> None:
    """Syncs a file or directory to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
