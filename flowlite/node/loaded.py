"""Whether what a process has imported is still what lies on the disk.

A template lives for minutes or hours; meanwhile a package may be upgraded, or a module of an editable install be
edited. A process that is started anew takes what is there now, so no worker must be forked from what was there before.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALLED = ("site-packages", "dist-packages")
_Look = tuple[int, int, int]


class Loaded:
    """The files of all imported modules, and the directories that packages are installed into, as they were."""

    def __init__(self) -> None:
        self._files: dict[str, _Look] = {}
        self._directories: dict[str, _Look | None] = {}

    def note(self) -> None:
        """Take in what was imported since the last time."""
        for path in _files():
            if path not in self._files:
                seen = _look(path)
                # What has no file of its own (in a zip, frozen) cannot change under us.
                if seen is not None:
                    self._files[path] = seen
        self._directories = {each: _look(each) for each in _directories()}

    def changed(self) -> str | None:
        """A file or directory that is not as it was; None if all are."""
        for path, seen in (*self._directories.items(), *self._files.items()):
            if _look(path) != seen:
                return path
        return None


def _files() -> Iterator[str]:
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            yield path


def _directories() -> Iterator[str]:
    """Installing or removing anything changes these, also what an import had looked for in vain."""
    return (path for path in sys.path if os.path.basename(path) in _INSTALLED)


def _look(path: str) -> _Look | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
