"""Which files of a directory are finished: a pure watch over what looks at it have found.

A file counts as finished once it was at rest between two looks and nobody had it open for writing. When its writers
have ended by themselves, everything is finished. When one was killed or failed, what was not at rest before that may be
half of what it should be: it stays *doubtful* until it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

_TEMPORARY_ENDS = (
    *(".tmp", ".temp", ".new", ".part", ".partial", ".incomplete", ".crdownload", ".unfinished"),
    *(".lock", ".swp", "~"),
)
_TEMPORARY_STARTS = (".tmp", "tmp-", ".nfs", ".fuse_hidden", ".flowlite-", ".~lock")
_TEMPORARY_INSIDE = ("-checkpoint-tmp-",)

_LONG_AGO, _NEVER = float("-inf"), float("inf")


class Seen(NamedTuple):
    """A file as one look found it: as long as all of this is the same, so is its content."""

    size: int
    mtime_ns: int
    ctime_ns: int = 0
    inode: int = 0

    @property
    def mark(self) -> tuple[int, int]:
        """What is the same on every machine that sees the file."""
        return (self.size, self.mtime_ns)

    @property
    def was_renamed(self) -> bool:
        """Whether it got its name (or its mode, or its time) after it was last written: its writer was done with it."""
        return self.ctime_ns > self.mtime_ns


def is_temporary(path: str) -> bool:
    """Whether a name, or that of a directory above, says that the file is still being made."""
    return any(
        part.endswith(_TEMPORARY_ENDS)
        or part.startswith(_TEMPORARY_STARTS)
        or any(inside in part for inside in _TEMPORARY_INSIDE)
        for part in path.split("/")
    )


class StabilityWatch:
    """What is known of the files of one directory.

    Attributes:
        doubtful: Files whose writer was cut off, as they were then: (size, mtime) by path.
    """

    def __init__(
        self, settle: float, doubtful: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """
        Args:
            settle: Seconds a file must have been at rest.
        """
        self._settle = settle
        self._files: dict[str, Seen] = {}
        self._since: dict[str, float] = {}
        self._now = _LONG_AGO
        self.doubtful = dict(doubtful or {})

    def look(self, files: Mapping[str, Seen], writing: Set[str], now: float) -> None:
        """Takes in what one look has found.

        Args:
            files: All files there are.
            writing: Those that a process has open for writing.
            now: Monotonic seconds.
        """
        since = {}
        for path, seen in files.items():
            before = self._since.get(path, _NEVER)
            at_rest = before != _NEVER and self._files.get(path) == seen
            since[path] = _NEVER if path in writing else before if at_rest else now
        self._files, self._since, self._now = dict(files), since, now
        self.doubtful = {
            path: mark
            for path, mark in self.doubtful.items()
            if path in files and files[path].mark == mark
        }

    @property
    def finished(self) -> dict[str, Seen]:
        """The files that are finished, as they were at the last look."""
        return {path: seen for path, seen in self._files.items() if self._is_finished(path)}

    @property
    def unfinished(self) -> list[str]:
        """The files that are not, in order; temporary ones are not counted."""
        return sorted(p for p in self._files if not is_temporary(p) and not self._is_finished(p))

    @property
    def busy(self) -> bool:
        """Whether something is being written now, a temporary file included."""
        return any(
            self._now - self._since[path] < self._settle
            for path in self._files
            if path not in self.doubtful
        )

    def cut(self) -> None:
        """A writer was killed or failed: what was not at rest at the last look may be half of what it should be."""
        self.doubtful |= {
            path: self._files[path].mark
            for path in self.unfinished
            if self._since[path] == _NEVER or not self._files[path].was_renamed
        }

    def end(self, files: Mapping[str, Seen]) -> None:
        """All writers have ended; what is there now and not doubtful is finished."""
        self.look(files, frozenset(), self._now)
        self._since = dict.fromkeys(files, _LONG_AGO)
        self._now = 0.0

    def _is_finished(self, path: str) -> bool:
        return (
            self._now - self._since[path] >= self._settle
            and path not in self.doubtful
            and not is_temporary(path)
        )
