"""Notices which files of a directory were renamed into their place, so that their writers had finished them.

The times of a file tell that only sometimes: unless the file is large, its last write and the rename fall into one tick
of the kernel's clock. inotify(7) tells it always, in the order in which it happened, but only what this machine itself
does. What it has missed is not believed.
"""

from __future__ import annotations

import os
import select
import struct
import sys
from contextlib import suppress
from pathlib import Path

from ..system.libc import Libc

_MODIFY, _MOVED_TO, _CREATE, _OVERFLOW, _IGNORED = 0x2, 0x80, 0x100, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _IS_DIRECTORY = 0x01000000, 0x02000000, 0x40000000
_WATCHED = _MODIFY | _MOVED_TO | _CREATE | _ONLYDIR
# Watch, mask, cookie, length of the name; the name follows.
_EVENT = struct.Struct("iIII")
_BLOCK = 1 << 16
# More directories are not watched. A user may have 8,192 watches on some systems.
_MOST_DIRECTORIES = 1000


class RenameWatch:
    """Watches a directory and all directories below it.

    Attributes:
        renamed: The files whose last change was that they got their name, by path relative to the directory.
        brought: Those of them that got it with a directory that was renamed.
    """

    def __init__(self, root: Path) -> None:
        self.renamed: set[str] = set()
        self.brought: set[str] = set()
        self._root = root
        self._directories: dict[int, str] = {}
        self._descriptor = -1
        if sys.platform != "linux":
            return
        # Without inotify (its limit is reached, or a sandbox has none), the times of files have to do.
        with suppress(OSError, AttributeError):
            self._libc = Libc()
            self._descriptor = self._libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
            self._watch("")

    def fileno(self) -> int:
        """The descriptor that can be read when something has happened; -1 if nothing is watched."""
        return self._descriptor

    def read(self) -> None:
        """Takes note of all that has happened until now."""
        while self._descriptor >= 0 and select.select([self._descriptor], [], [], 0)[0]:
            try:
                events = os.read(self._descriptor, _BLOCK)
            except OSError:
                return
            at = 0
            while at < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                name = events[at - length : at].rstrip(b"\0")
                self._note(watch, mask, os.fsdecode(name))

    def close(self) -> None:
        """Ends watching."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _note(self, watch: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            # Which of them were written since is lost.
            self.renamed.clear()
            self.brought.clear()
            return
        if mask & _IGNORED:
            self._directories.pop(watch, None)
            return
        above = self._directories.get(watch)
        if above is None or not name:
            return
        path = f"{above}/{name}" if above else name
        if mask & _IS_DIRECTORY:
            if mask & (_CREATE | _MOVED_TO):
                self._watch(path, whole=bool(mask & _MOVED_TO))
            return
        self.brought.discard(path)
        if mask & _MOVED_TO:
            self.renamed.add(path)
        else:
            self.renamed.discard(path)

    def _watch(self, path: str, *, whole: bool = False) -> None:
        """Watches a directory and those below it.

        Args:
            path: Relative to the root.
            whole: It was renamed itself. All files in it were finished before.
        """
        if len(self._directories) >= _MOST_DIRECTORIES:
            return
        place = self._root / path
        with suppress(OSError):
            number = self._libc.call(
                "inotify_add_watch",
                self._descriptor,
                os.fsencode(place),
                _WATCHED | (_DONT_FOLLOW if path else 0),
            )
            self._directories[number] = path
            for entry in os.scandir(place):
                below = f"{path}/{entry.name}" if path else entry.name
                if entry.is_dir(follow_symlinks=False):
                    self._watch(below, whole=whole)
                elif whole:
                    self.renamed.add(below)
                    self.brought.add(below)
