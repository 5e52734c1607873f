"""Files of ours: written for their owner alone, and made to outlive a crash of this machine."""

from __future__ import annotations

import os
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
