"""Detects that files have changed on disk since this process imported them.

A fork server lives for minutes or hours. Meanwhile a package may be upgraded, or a module of an editable install may
be edited. A new process imports the current files, so no worker may be forked from a process that holds older ones.

Each file's state is recorded before the file is read, so that an edit during the import counts as a change.
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
# The state of a file that may have changed after it was read. It never equals the current state.
_UNKNOWN: _Look = (-1, -1, -1)
# The coarsest resolution of modification times. Within this time after a change, another one may go unnoticed.
_FINEST_SECONDS = 2.0
# File systems take times from a kernel clock that may lag behind by one tick.
_TICK_SECONDS = 0.1


class Loaded:
    """The recorded state of the files of all imported modules, and of the directories that packages install into."""

    def __init__(self) -> None:
        self._files: dict[str, _Look] = {}
        self._directories: dict[str, frozenset[str] | None] = {}
        # Hashes of files that had changed just before they were recorded.
        self._contents: dict[str, bytes | None] = {}

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """A context in which modules are imported: the file of each module is recorded before it is read."""
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
        """Records the modules that were imported since the last call.

        Args:
            since: Unix time before which no module was imported, if imports were not watched. Files that changed after
                this time may have changed after they were read.
        """
        for path in _files():
            if path not in self._files:
                self._note_file(path, since)
        self._note_directories()

    def changed(self) -> str | None:
        """Returns the path of a file or directory that has changed, or None."""
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
                # From now on the modification time shows a change.
                del self._contents[path]
        return None

    def _note_file(self, path: str, since: float | None = None) -> None:
        seen = _look(path)
        # A module without a file (in a zip, frozen) cannot change.
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
        """A context in which the file of a loader is recorded before `method` of the loader is called."""
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
    """Returns the directories that change when a package is installed or removed.

    They also show a package that an earlier import did not find.
    """
    return (path for path in sys.path if os.path.basename(path) in _INSTALLED)


def _names(directory: str) -> frozenset[str] | None:
    """Returns the names in a directory, without `__pycache__`, which imports create."""
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
    """Whether a file in this state may change again without a visible difference."""
    return seen[0] > (time.time() - _FINEST_SECONDS) * 1e9


def _content(path: str) -> bytes | None:
    import hashlib

    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _changed_at(path: str) -> float:
    """Returns when a file was last written, renamed or replaced; installers may set the modification time back."""
    try:
        return os.stat(path).st_ctime
    except OSError:
        return time.time()
