"""What is mounted here: which file system contains a path, and whether other machines may use it, too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

# File systems of many machines whose source names no server.
_SHARED = frozenset({"beegfs", "gpfs", "panfs", "pvfs2", "wekafs"})


def file_system_of(path: str) -> tuple[str, str]:
    """Returns type and source of the file system that contains a resolved path; "" each if that is not known."""
    best, found = "", ("", "")
    for point, kind, source in mounts():
        above = point == "/" or path == point or path.startswith(f"{point}/")
        if above and len(point) >= len(best):
            best, found = point, (kind, source)
    return found


def names_server(source: str) -> bool:
    """Whether the source of a file system is a directory or share of a server."""
    return ":" in source or source.startswith("//")


def is_shared(path: str | os.PathLike[str]) -> bool:
    """Whether a path is on a file system that other machines may use at the same time. Linux only."""
    try:
        # File systems of a network, and some local ones, have no device of their own.
        if os.major(os.stat(path).st_dev) != 0:
            return False
    except OSError:
        return False
    return is_of_many(*file_system_of(os.path.realpath(path)))


def is_of_many(kind: str, source: str) -> bool:
    """Whether many machines may use a file system of this type and source."""
    return kind in _SHARED or names_server(source)


def mounts() -> Iterator[tuple[str, str, str]]:
    """Yields point, type and source of each mount that this process sees; nothing where the kernel does not tell."""
    try:
        # The kernel escapes only blanks, tabs, line feeds and backslashes in a path, so that a CR does not end a line.
        with open(
            "/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n"
        ) as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                kind, source, *_ = f"{rest} ".split(" ")
                yield _unquoted(fields.split(" ")[4]), kind, _unquoted(source)
    except OSError:
        return


def _unquoted(text: str) -> str:
    """Decodes escapes such as \\040 (blank)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
