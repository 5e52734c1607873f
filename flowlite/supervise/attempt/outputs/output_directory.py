"""Writes files from nodes below one directory. No existing file is overwritten, and no path leads out of the directory.

A file is first written to `.incoming` below the directory, gets its time and mode there, and is then given its name,
which fails if the name exists. An interrupted fetch can therefore go on, and a file at its final name is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from flowlite.settings.private_files import sync
from flowlite.supervise.attempt.outputs.manifest import OutputFile

_INCOMING = ".incoming"
# Files that are synced to disk at a time.
_SYNCS = 16


class NameTaken(Exception):
    """Another file has that name already."""


class OutputDirectory:
    """One directory on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / _INCOMING
        umask = os.umask(0)
        os.umask(umask)
        self._modes = (0o666 & ~umask, 0o777 & ~umask)

    def has(self, path: str, file: OutputFile) -> bool:
        """Whether the file is here already."""
        try:
            status = os.lstat(self.root / path)
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (file.size, file.modified_ns)

    def take(self, path: str, file: OutputFile, fetch: Callable[[Path], None]) -> None:
        """Writes a file to a relative path.

        Args:
            path: Path relative to the directory.
            file: The file on the node.
            fetch: Called with the path to write to. Continues what an earlier call left there.

        Raises:
            Taken: Another file has that name.
            OSError: The file cannot be written.
        """
        if self.has(path, file):
            return
        staged = self._stage(path)
        fetch(staged)
        self._dress(staged, file)
        sync(staged)
        self._name(path, staged)

    def take_all(self, contents: Sequence[tuple[str, OutputFile, bytes]]) -> list[str]:
        """Writes small files, each to its relative path. Returns the paths that another file has.

        Raises OSError.
        """
        taken = []
        staged: list[tuple[str, Path]] = []
        for path, file, content in contents:
            if self.has(path, file):
                continue
            try:
                place = self._stage(path)
            except NameTaken:
                taken.append(path)
                continue
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.write_bytes(content)
            staged.append((path, place))
            self._dress(place, file)
        # File systems write what is synced at the same time together.
        with ThreadPoolExecutor(_SYNCS) as syncs:
            list(syncs.map(sync, [place for _, place in staged]))
        for path, place in staged:
            try:
                self._name(path, place)
            except NameTaken:
                taken.append(path)
        return taken

    def _stage(self, path: str) -> Path:
        """Returns the path to write a file to at first. Raises Taken if another file has its name."""
        target = self.root / path
        if os.path.lexists(target):
            raise NameTaken(path)
        self._make_parents(path)
        return self._incoming / path

    def _dress(self, staged: Path, file: OutputFile) -> None:
        os.chmod(staged, self._modes[file.program])
        os.utime(staged, ns=(file.modified_ns, file.modified_ns))

    def _name(self, path: str, staged: Path) -> None:
        """Gives a complete file its name. Raises Taken."""
        target = self.root / path
        try:
            os.link(staged, target, follow_symlinks=False)
        except FileExistsError:
            raise NameTaken(path) from None
        except OSError:
            # The file system has no hard links.
            if os.path.lexists(target):
                raise NameTaken(path) from None
            os.rename(staged, target)
        staged.unlink(missing_ok=True)

    def link(self, path: str, target: str) -> None:
        """Creates a symbolic link. Raises Taken, OSError."""
        place = self.root / path
        self._make_parents(path)
        try:
            os.symlink(target, place)
        except FileExistsError:
            if not (place.is_symlink() and os.readlink(place) == target):
                raise NameTaken(path) from None

    def finish(self) -> None:
        """Removes `.incoming` and syncs the directories once all files are here. Raises OSError."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._incoming)
        if self.root.is_dir():
            for directory, _, _ in os.walk(self.root):
                sync(Path(directory))

    def _make_parents(self, path: str) -> None:
        """Creates the directories above a file. Raises Taken if one of them is a symbolic link or another file."""
        first, *others = path.split("/")
        if first == _INCOMING:
            # A link in there would be written through.
            raise NameTaken(path)
        self.root.mkdir(parents=True, exist_ok=True)
        above = self.root
        for part in [first, *others][:-1]:
            above = above / part
            if above.is_symlink() or (above.exists() and not above.is_dir()):
                raise NameTaken(str(above.relative_to(self.root)))
            above.mkdir(exist_ok=True)
