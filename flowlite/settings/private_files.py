"""Files of ours: written for their owner alone, and made to outlive a crash of this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def make_durable(directory: Path, prefix: str) -> None:
    """Returns when all files of a directory whose names begin like this are on disk, with their names.

    Raises:
        OSError: One of them is not, and is not known to be what was written.
    """
    for path in sorted(directory.iterdir()):
        if path.name.startswith(prefix):
            _sync(path)
    _sync(directory)


def directories_above(directory: Path) -> Iterator[Path]:
    """The directories above one that only this user can have put something into, from the nearest on.

    They end below a directory that belongs to somebody else or that all may write to (such as /tmp), at another file
    system, and with the home directory.
    """
    try:
        at = directory.resolve(strict=True)
        device, top = at.stat().st_dev, Path("~").expanduser().resolve()
        while at not in (top, at.parent):
            at = at.parent
            found = at.stat()
            shared = found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH
            if found.st_dev != device or shared:
                return
            yield at
    except (OSError, RuntimeError):
        return


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
