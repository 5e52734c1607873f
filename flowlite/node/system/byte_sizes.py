"""Numbers of bytes: formatted for people, and those for which a disk has room."""

from __future__ import annotations

import os

_WITHOUT_LIMIT = 2**63 - 1


def human_size(size: float) -> str:
    """Returns a size such as `3.4 GB`, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # From here on, three digits would be 1e+03.
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"


def room_on_disk(directory: str | os.PathLike[str]) -> tuple[int, int]:
    """Returns the bytes that this user can still write to the disk of a directory, and the size of that disk.

    A file system of 0 bytes has no limit, as a ramfs and some tmpfs, or does not know it, as some of FUSE.
    """
    facts = os.statvfs(directory)
    if facts.f_blocks == 0:
        return _WITHOUT_LIMIT, _WITHOUT_LIMIT
    free = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail
    return facts.f_frsize * free, facts.f_frsize * facts.f_blocks
