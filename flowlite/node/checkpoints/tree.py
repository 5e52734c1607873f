"""The checkpoint directory: scanning and reading it, and putting files back into it."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import stat
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

from ..project_files.links import as_relative, leads_out
from ..quick_dataclass import dataclass
from ..system import processes
from .manifest import File
from .stability import FileState

RESTORING = ".flowlite-restoring-"
"""The prefix of the name of a file while it is restored."""
OWN = ".flowlite-"


@dataclass(slots=True)
class TreeScan:
    """The result of one scan of a directory, by path relative to it.

    Attributes:
        identities: Device and inode of each file, to find the processes that have it open.
        skipped: Entries that cannot be copied.
    """

    files: dict[str, FileState] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)


def look_at(root: Path, shown_at: str) -> TreeScan:
    """Scans a directory. Links are recorded and never followed; entries that vanish meanwhile are left out.

    Args:
        root: The directory.
        shown_at: The path at which the workers see it, and to which their absolute links lead.

    Raises:
        OSError: The directory itself cannot be read.
    """
    found = TreeScan()
    todo = [""]
    while todo:
        above = todo.pop()
        try:
            entries = sorted(os.scandir(root / above), key=lambda entry: entry.name)
        except OSError:
            if not above:
                raise
            continue
        ours = [entry for entry in entries if not entry.name.startswith(OWN)]
        if above and not ours:
            found.directories.append(above)
        for entry in ours:
            path = f"{above}/{entry.name}" if above else entry.name
            try:
                _note(found, (str(root), shown_at), path, entry, todo)
            except OSError:
                continue
    return found


def _note(
    found: TreeScan,
    tops: tuple[str, str],
    path: str,
    entry: os.DirEntry[str],
    todo: list[str],
) -> None:
    if entry.is_symlink():
        target = as_relative(path, os.readlink(entry.path), tops)
        if leads_out(path, target):
            found.skipped.add(path)
        else:
            found.links[path] = target
        return
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        todo.append(path)
    elif not stat.S_ISREG(status.st_mode):
        found.skipped.add(path)
    else:
        found.files[path] = seen_of(status)
        found.modes[path] = stat.S_IMODE(status.st_mode)
        found.identities[(status.st_dev, status.st_ino)] = path


def seen_of(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def seen_at(path: Path) -> FileState | None:
    """Returns a file's present state; None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return seen_of(status) if stat.S_ISREG(status.st_mode) else None


def open_for_writing(look: TreeScan, pids: Iterable[int]) -> set[str]:
    """Returns the files of a scan that one of these processes has open for writing, as far as the kernel tells."""
    found: set[str] = set()
    if not look.identities:
        return found
    for pid in pids:
        directory = f"/proc/{pid}/fd"
        try:
            numbers = os.listdir(directory)
        except OSError:
            continue
        for number in numbers:
            try:
                status = os.stat(f"{directory}/{number}")
                path = look.identities.get((status.st_dev, status.st_ino))
                if path is not None and processes.can_write(pid, number):
                    found.add(path)
            except OSError:
                continue
    return found


def sha256_of(path: Path) -> str:
    """Returns the hash of a file."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Restoring


class NotSafe(OSError):
    """A path of the set leads through something that is not a directory of ours."""


def make_parents(root: Path, path: str) -> None:
    """Creates the directories above a file. Raises NotSafe if a link or a file is in their place."""
    at = root
    for part in path.split("/")[:-1]:
        at = at / part
        try:
            os.mkdir(at)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(at).st_mode):
                raise NotSafe(f"{at} is there and is no directory") from None


def partial_of(root: Path, path: str) -> Path:
    """Returns the temporary path of a file in the same directory, used until it is complete."""
    above, _, name = path.rpartition("/")
    short = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return root / above / f"{RESTORING}{short}"


def put_in_place(root: Path, file: File, partial: Path) -> FileState:
    """Gives a restored file its time, its mode and its name."""
    os.utime(partial, ns=(file.mtime_ns, file.mtime_ns))
    os.chmod(partial, file.mode | stat.S_IRUSR | stat.S_IWUSR)
    os.replace(partial, root / file.path)
    return seen_of(os.lstat(root / file.path))


def put_link(root: Path, path: str, target: str) -> None:
    """Creates a link, also in the place of another link. Something else that is there stays."""
    make_parents(root, path)
    at = root / path
    if at.is_symlink():
        if os.readlink(at) == target:
            return
        os.unlink(at)
    if not at.exists():
        os.symlink(target, at)


def end_of(link: str, target: str) -> str:
    """Returns the path that a relative link leads to, judged by names alone."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(link), target))


def aside_of(root: Path) -> Path:
    """Returns the directory to which incomplete files are moved.

    It is beside the directory of checkpoints: trainers look at every name in that, and take `checkpoint-5.unfinished`
    for the last checkpoint, or for no number.
    """
    return root.with_name(f"{root.name}.unfinished")


def put_aside(root: Path, path: str) -> bool:
    """Moves an incomplete file or directory aside, in the place of an earlier one. Returns whether it was possible."""
    aside = aside_of(root) / path
    try:
        aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside)
        os.rename(root / path, aside)
    except OSError:
        return False
    return True
