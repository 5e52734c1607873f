"""Where files from nodes are put on this machine: no file of the user's is overwritten, and no path leads elsewhere.

A file comes to `.incoming` below the directory, gets its time and mode there, and is then given its name, which fails
where there is a file of that name. So whoever is interrupted goes on where it was, and what has its name is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flowlite.supervise.attempt.outputs.manifest import OutputFile

_INCOMING = ".incoming"


class Taken(Exception):
    """There is another file of that name already."""


class Landing:
    """One directory on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / _INCOMING
        umask = os.umask(0)
        os.umask(umask)
        self._modes = (0o666 & ~umask, 0o777 & ~umask)

    def has(self, path: str, file: OutputFile) -> bool:
        """Whether it is here already."""
        try:
            status = os.lstat(self.root / path)
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (file.size, file.modified_ns)

    def take(self, path: str, file: OutputFile, fetch: Callable[[Path], None]) -> None:
        """Brings a file to a relative path; `fetch` is given where to put it, and goes on with what is there.

        Raises:
            Taken: Another file has that name.
            OSError: It cannot be written here.
        """
        if self.has(path, file):
            return
        target, staged = self.root / path, self._incoming / path
        if os.path.lexists(target):
            raise Taken(path)
        self._make_parents(target)
        fetch(staged)
        os.chmod(staged, self._modes[file.program])
        os.utime(staged, ns=(file.modified_ns, file.modified_ns))
        _sync(staged)
        try:
            os.link(staged, target, follow_symlinks=False)
        except FileExistsError:
            raise Taken(path) from None
        except OSError:
            # A file system without hard links.
            if os.path.lexists(target):
                raise Taken(path) from None
            os.rename(staged, target)
        staged.unlink(missing_ok=True)

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link. Raises Taken, OSError."""
        place = self.root / path
        self._make_parents(place)
        try:
            os.symlink(target, place)
        except FileExistsError:
            if not (place.is_symlink() and os.readlink(place) == target):
                raise Taken(path) from None

    def finish(self) -> None:
        """All is here: makes that durable. Raises OSError."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._incoming)
        if self.root.is_dir():
            for directory, _, _ in os.walk(self.root):
                _sync(Path(directory))

    def _make_parents(self, target: Path) -> None:
        """Makes the directories above a file, and sees that none of them is a link to elsewhere."""
        self.root.mkdir(parents=True, exist_ok=True)
        above = self.root
        for part in target.parent.relative_to(self.root).parts:
            above = above / part
            if above.is_symlink():
                raise Taken(str(above.relative_to(self.root)))
            above.mkdir(exist_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
