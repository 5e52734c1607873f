"""Values that were read from files, kept in memory for as long as the files stay as they are.

A task reads the same configuration, known hosts and private key for each of its hosts. A file that changes is read
again at the next use. One that has changed within the last seconds is not relied on, since a further change may leave
its times and its size as they are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Generic, TypeVar

from flowlite.node.quick_dataclass import dataclass

Value = TypeVar("Value")

# A file system may have times as coarse as that.
_SETTLED_NS = 2_000_000_000
_MOST = 8192

# Device, number, size, and the times of the last changes of content and of attributes; None for a file that is absent.
State = tuple[int, ...] | None


@dataclass(slots=True)
class Sources:
    """The files that a value was read from, each as it was before it was read.

    Attributes:
        files: The state of each file.
        lasting: Whether the value depends on nothing else, and all files were left alone for a while.
    """

    files: dict[str, State] = field(default_factory=dict)
    lasting: bool = True

    def note(self, path: str | os.PathLike[str]) -> None:
        """Notes a file or directory that is read now."""
        name = os.fspath(path)
        try:
            state = _state(name)
        except (OSError, ValueError):
            self.depend()
            return
        if self.files.setdefault(name, state) != state or not _settled(state):
            self.depend()

    def depend(self) -> None:
        """Notes that the value depends on something else than these files."""
        self.lasting = False


class KeptValues(Generic[Value]):
    """Values by key. `find` returns one only if all of its files are still as they were."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Value, dict[str, State]]] = {}

    def find(self, key: Hashable) -> Value | None:
        """The value of that key; None if there is none, or one of its files has changed."""
        found = self._kept.get(key)
        if found is None:
            return None
        value, files = found
        try:
            same = all(_state(name) == state for name, state in files.items())
        except OSError:
            same = False
        return value if same else None

    def keep(self, key: Hashable, value: Value, sources: Sources) -> Value:
        """Keeps a value, if it is known what it depends on. Returns it."""
        if sources.lasting:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[key] = (value, sources.files)
        return value


_reading = threading.Lock()


def read_once(read: Callable[[], Value]) -> Value:
    """Calls `read`, one thread after the other: those that begin together find what the first has read and kept."""
    with _reading:
        return read()


def _after_fork() -> None:
    # A thread that the child does not have may hold it.
    global _reading
    _reading = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _settled(state: State) -> bool:
    # The time of the content may have been set to the past; that of the attributes cannot.
    return state is None or time.time_ns() - max(state[-2:]) >= _SETTLED_NS


def _state(name: str) -> State:
    """The state of a file. Raises OSError if the file can be neither seen nor known to be absent."""
    try:
        seen = os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
