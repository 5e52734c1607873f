"""Writes files from nodes below one directory. No existing file is overwritten, and no path leads out of the directory.

A file is first written to `.flow-incoming` below the directory, gets its time and mode there, and is then given its
name, which fails if the name exists. An interrupted fetch can therefore go on, and a file at its final name is
complete. The name in `.flow-incoming` is a hash of all that identifies the content, so that a fetch never continues
another file.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import ownership
from flowlite.settings.private_files import sync
from flowlite.supervise.attempt.outputs.manifest import OutputFile

INCOMING = ".flow-incoming"
"""Directory below a target, in which files are written before they get their names."""
# Files that are synced to disk at a time.
_SYNCS = 16
# A fetch of which nothing has come for as long has ended (`fetching.steady` gives up after half of it).
_ABANDONED_SECONDS = 120.0
_THIS_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Directories of some file systems cannot be synced.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


class NameTaken(Exception):
    """Another file has that name already."""


def check_made(directory: Path) -> None:
    """Raises ConfigError if another user has made the directory of copies first, in one such as /tmp."""
    if why := ownership.taken(str(directory)):
        raise ConfigError(
            f"{why}, another user, who could change what is put there; give another directory"
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """Files of a node or volume, compared with those in a directory here.

    Attributes:
        here: Files that are here already.
        taken: Paths that another file of the same size and time has.
        lacking: All others.
    """

    here: list[OutputFile]
    taken: list[str]
    lacking: list[OutputFile]


class OutputDirectory:
    """One directory on this machine."""

    def __init__(self, root: Path, *, own: bool = False) -> None:
        """
        Args:
            root: The directory, which need not exist.
            own: Whether only this process writes into it. The end then removes what other fetches left.
        """
        self.root = root
        self._own = own
        self._incoming = root / INCOMING
        # The directories whose entries have to be on disk at the end.
        self._used: set[str] = {str(root)}
        umask = os.umask(0)
        os.umask(umask)
        self._modes = (0o666 & ~umask, 0o777 & ~umask)

    def has(self, path: str, file: OutputFile) -> bool:
        """Whether a file of that name, size and time is here."""
        try:
            status = os.lstat(self._at(path))
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (file.size, file.modified_ns)

    def compare(
        self,
        files: Mapping[str, OutputFile],
        digests: Callable[[Sequence[OutputFile]], Sequence[str]],
    ) -> Compared:
        """Compares files with those here. Content is compared only where name, size and time are equal.

        Args:
            files: The files by their paths relative to the directory.
            digests: Returns the sha256 of each file at its source; "" if it cannot be read.
        """
        alike = {path: file for path, file in files.items() if self.has(path, file)}
        for path in alike:
            self._used.update(map(self._at, _above(path)))
        compared = Compared([], [], [file for path, file in files.items() if path not in alike])
        wanted = digests(list(alike.values())) if alike else ()
        for (path, file), digest in zip(alike.items(), wanted, strict=True):
            with open(self.root / path, "rb") as opened:
                equal = hashlib.file_digest(opened, "sha256").hexdigest() == digest
            if equal:
                compared.here.append(file)
            else:
                compared.taken.append(path)
        return compared

    def take(self, path: str, file: OutputFile, source: str, fetch: Callable[[Path], None]) -> None:
        """Writes a file to a relative path, unless a file of the same content is there.

        Args:
            path: Path relative to the directory.
            file: The file at its source.
            source: Identifies the node or storage, and the file's path there.
            fetch: Called with the path to write to. Continues what an earlier call for the same file left there.

        Raises:
            NameTaken: Another file has that name.
            OSError: The file cannot be written.
        """
        staged = self._stage(path, file, source, set())
        fetch(staged)
        self._dress(staged, file)
        sync(staged)
        self._name(path, file, staged)

    def take_all(self, contents: Sequence[tuple[str, OutputFile, str, bytes]]) -> list[str]:
        """Writes small files: path, file and source as for `take`, and the content.

        Returns:
            The paths that another file has.

        Raises OSError.
        """
        taken = []
        staged: list[tuple[str, OutputFile, Path]] = []
        ready: set[str] = set()
        for path, file, source, content in contents:
            try:
                place = self._stage(path, file, source, ready)
            except NameTaken:
                taken.append(path)
                continue
            place.write_bytes(content)
            staged.append((path, file, place))
            self._dress(place, file)
        # File systems write what is synced at the same time together.
        with ThreadPoolExecutor(_SYNCS) as syncs:
            list(syncs.map(sync, [place for _, _, place in staged]))
        for path, file, place in staged:
            try:
                self._name(path, file, place)
            except NameTaken:
                taken.append(path)
        return taken

    def _stage(self, path: str, file: OutputFile, source: str, ready: set[str]) -> Path:
        """Returns the path to write a file to at first. Raises NameTaken if another file has its name.

        Args:
            ready: As for `_make_parents`.
        """
        if os.path.lexists(self._at(path)) and not self.has(path, file):
            raise NameTaken(path)
        self._make_parents(path, ready)
        self._make_incoming()
        identity = json.dumps([source, path, file.size, file.modified_ns, file.version])
        return self._incoming / hashlib.sha256(os.fsencode(identity)).hexdigest()[:32]

    def _dress(self, staged: Path, file: OutputFile) -> None:
        os.chmod(staged, self._modes[file.program])
        os.utime(staged, ns=(file.modified_ns, file.modified_ns))

    def _name(self, path: str, file: OutputFile, staged: Path) -> None:
        """Gives a complete file its name, unless a file of the same content has it. Raises NameTaken."""
        target = self._at(path)
        try:
            os.link(staged, target, follow_symlinks=False)
        except OSError:
            if not os.path.lexists(target):
                # The file system has no hard links.
                os.rename(staged, target)
            elif not (self.has(path, file) and filecmp.cmp(staged, target, shallow=False)):
                staged.unlink()
                raise NameTaken(path) from None
        staged.unlink(missing_ok=True)

    def link(self, path: str, target: str) -> None:
        """Creates a symbolic link. Raises NameTaken, OSError."""
        place = self.root / path
        self._make_parents(path, set())
        try:
            os.symlink(target, place)
        except FileExistsError:
            if not (place.is_symlink() and os.readlink(place) == target):
                raise NameTaken(path) from None

    def finish(self) -> None:
        """Tidies `.flow-incoming` up, and syncs the directories once all files are here. Raises OSError.

        Only those that were written into: the directory may be somebody's home, or the root of all file systems.
        """
        if self._own:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._incoming)
            # An earlier process may have written into any of them.
            self._used.update(_directories_of(self.root))
        else:
            self._remove_abandoned()
        if self.root.is_dir():
            for directory in sorted(self._used):
                try:
                    sync(Path(directory))
                except OSError as error:
                    if error.errno not in _CANNOT_SYNC:
                        raise

    def _remove_abandoned(self) -> None:
        """Removes what is left of interrupted fetches, and `.flow-incoming` unless another fetch uses it.

        Where others can change the directory, they may have put a link in its place, which must not be followed.
        """
        with suppress(OSError):
            incoming = os.open(self._incoming, _THIS_DIRECTORY)
            try:
                for name in os.listdir(incoming):
                    found = os.stat(name, dir_fd=incoming, follow_symlinks=False)
                    if time.time() - found.st_ctime > _ABANDONED_SECONDS:
                        os.unlink(name, dir_fd=incoming)
            finally:
                os.close(incoming)
            self._incoming.rmdir()

    def _make_incoming(self) -> None:
        """Creates `.flow-incoming`, or checks that no other user can change what is in it. Raises OSError.

        In a directory such as /tmp, where all may create files, another user may have made it first.
        """
        try:
            self._incoming.mkdir(mode=0o700)
            return
        except FileExistsError:
            root = os.stat(self.root)
        try:
            found = os.lstat(self._incoming)
        except FileNotFoundError:
            # Another fetch has ended.
            self._make_incoming()
            return
        # A file system may give what root makes to nobody.
        trusted = found.st_uid in (0, os.geteuid(), root.st_uid) and stat.S_ISDIR(found.st_mode)
        # Others can change everything in the directory itself, or its file system knows no permissions.
        unknown = root.st_mode & _OTHERS_WRITE and not root.st_mode & stat.S_ISVTX
        if not trusted or (found.st_mode & _OTHERS_WRITE and not unknown):
            why = f"uid {found.st_uid} has made it, and could change what is put there; remove it"
            raise OSError(errno.EPERM, why, str(self._incoming))

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _make_parents(self, path: str, ready: set[str]) -> None:
        """Creates the directories above a file. Raises NameTaken if one of them is a symbolic link or another file.

        Args:
            ready: Directories that are there, as one call for several files has found; those of this file are added.
        """
        if path.partition("/")[0] == INCOMING:
            # A link in there would be written through.
            raise NameTaken(path)
        self.root.mkdir(parents=True, exist_ok=True)
        lacking = []
        for above in _above(path):
            if above in ready:
                break
            lacking.append(above)
        for above in reversed(lacking):
            place = self._at(above)
            try:
                os.mkdir(place)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(place).st_mode):
                    raise NameTaken(above) from None
            ready.add(above)
            self._used.add(place)


def _above(path: str) -> Iterator[str]:
    """The directories above a relative path, the nearest first."""
    while above := path.rpartition("/")[0]:
        yield above
        path = above


def _directories_of(root: Path) -> list[str]:
    """All directories below one, and itself. Without recursion, since a task may leave directories of any depth."""
    found = [str(root)]
    for directory in found:
        with suppress(OSError), os.scandir(directory) as entries:
            found += (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    return found
