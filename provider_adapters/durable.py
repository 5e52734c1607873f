"""Files that survive a power failure."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from flowlite.node.system import atomic_files
from flowlite.settings.private_files import sync


def write_durably(path: Path, text: str) -> None:
    """Writes a file (0600) atomically; once this returns, it survives a power failure."""
    with atomic_files.new(path) as descriptor:
        atomic_files.write(descriptor, text.encode())
        os.fsync(descriptor)
    sync(path.parent)


def create_durably(path: Path, text: str) -> bool:
    """As `write_durably`, unless the file exists: of several processes, one wins. Returns whether it was this one."""
    complete = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_durably(complete, text)
    try:
        os.link(complete, path)
    except FileExistsError:
        return False
    finally:
        complete.unlink()
    sync(path.parent)
    return True


def make_directory(path: Path) -> None:
    """Creates a directory (0700) and its parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync(path.parent)
