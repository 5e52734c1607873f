"""Whether what a process has imported is still what lies on the disk.

A fork server lives for minutes or hours; meanwhile a package may be upgraded, or a module of an editable install be
edited. A process that is started anew takes what is there now, so no worker must be forked from what was there before.

What a file is noted as is what it was before it was read: one that is edited while it is imported has changed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_INSTALLED = ("site-packages", "dist-packages")
_Look = tuple[int, int, int]
# Of a file that may have been changed after it was read: it is never as it was.
_UNKNOWN: _Look = (-1, -1, -1)
# File systems note the time of a change no finer than this. Until so long after it, another change may look the same.
_FINEST_SECONDS = 2.0
# Clocks of the kernel that note changes lag behind by a tick.
_TICK_SECONDS = 0.1


class Loaded:
    """The files of all imported modules, and the directories that packages are installed into, as they were."""

    def __init__(self) -> None:
        self._files: dict[str, _Look] = {}
        self._directories: dict[str, frozenset[str] | None] = {}
        # What was in files that had been changed just before they were noted.
        self._contents: dict[str, bytes | None] = {}

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """While modules are imported: the file of each is noted before it is read."""
        from importlib.machinery import (
            ExtensionFileLoader,
            SourceFileLoader,
            SourcelessFileLoader,
        )

        self._note_directories()
        with contextlib.ExitStack() as watched:
            for loader in (SourceFileLoader, SourcelessFileLoader):
                watched.enter_context(self._before(loader, "get_code"))
            watched.enter_context(self._before(ExtensionFileLoader, "create_module"))
            try:
                yield
            finally:
                self.note()

    def note(self, since: float | None = None) -> None:
        """Take in what was imported since the last time.

        Args:
            since: Unix time at which the first module was imported at the earliest, where nobody watched: what has been
                changed since then may have been changed after it was read.
        """
        for path in _files():
            if path not in self._files:
                self._note_file(path, since)
        self._note_directories()

    def changed(self) -> str | None:
        """A file or directory that is not as it was; None if all are."""
        for path, names in self._directories.items():
            if _names(path) != names:
                return path
        for path, seen in self._files.items():
            if _look(path) != seen:
                return path
        for path in tuple(self._contents):
            settled = not _is_fresh(self._files[path])
            if _content(path) != self._contents[path]:
                return path
            if settled:
                # From now on a change is seen by its time.
                del self._contents[path]
        return None

    def _note_file(self, path: str, since: float | None = None) -> None:
        seen = _look(path)
        # What has no file of its own (in a zip, frozen) cannot change under us.
        if seen is None:
            return
        self._files[path] = seen
        if since is not None and _changed_at(path) >= since - _TICK_SECONDS:
            self._files[path] = _UNKNOWN
        elif _is_fresh(seen):
            self._contents[path] = _content(path)

    def _note_directories(self) -> None:
        for each in _directories():
            if each not in self._directories:
                self._directories[each] = _names(each)

    @contextlib.contextmanager
    def _before(self, loader: type, method: str) -> Iterator[None]:
        """While it lasts, the file of a loader is noted before the loader does this."""
        original: Any = getattr(loader, method)
        inherited = method not in vars(loader)

        def noting(self_: Any, *arguments: Any) -> Any:
            if self_.path not in self._files:
                self._note_file(self_.path)
            return original(self_, *arguments)

        setattr(loader, method, noting)
        try:
            yield
        finally:
            if inherited:
                delattr(loader, method)
            else:
                setattr(loader, method, original)


def _files() -> Iterator[str]:
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            yield path


def _directories() -> Iterator[str]:
    """Installing or removing anything changes these, also what an import had looked for in vain."""
    return (path for path in sys.path if os.path.basename(path) in _INSTALLED)


def _names(directory: str) -> frozenset[str] | None:
    """What is in a directory, but for the one that importing makes there itself."""
    try:
        return frozenset(os.listdir(directory)) - {"__pycache__"}
    except OSError:
        return None


def _look(path: str) -> _Look | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _is_fresh(seen: _Look) -> bool:
    """Whether a file that looks like this may be changed again without looking otherwise."""
    return seen[0] > (time.time() - _FINEST_SECONDS) * 1e9


def _content(path: str) -> bytes | None:
    import hashlib

    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _changed_at(path: str) -> float:
    """When a file was written, renamed or replaced last; an installer may set its time of modification back."""
    try:
        return os.stat(path).st_ctime
    except OSError:
        return time.time()
