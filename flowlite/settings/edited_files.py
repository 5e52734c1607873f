"""Changes the files of FLOW_HOME that commands edit: `config.toml`, `known_hosts` and `trusted.json`.

Such a file is read, and then written as a whole. Two changes at a time would lose one of them, so that a change holds a
lock meanwhile: `NAME.lock`, beside the file. Commands that change something else one at a time use such a lock, too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowlite.errors import ConfigError
from flowlite.node.system.atomic_files import write_atomically


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock of a file, which need not exist. A thread that holds it already waits for ever.

    Raises ConfigError if the directory of the file cannot be written, and BlockingIOError if somebody else holds it and
    is not to be waited for.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot_be_written(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Writes a file atomically, so that only its owner may read it. A symbolic link is kept, and its target replaced.

    Raises ConfigError.
    """
    try:
        # The file is often a link into a repository of settings.
        write_atomically(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise _cannot_be_written(path, error) from None


def _cannot_be_written(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be written: {error.strerror}")
