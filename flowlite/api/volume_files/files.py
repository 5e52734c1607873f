"""What both kinds of storage have in common: their files, and how these are named on the command line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from flowlite.errors import ConfigError, FlowError
from flowlite.node.quick_dataclass import dataclass
from flowlite.supervise.attempt.outputs.manifest import OutputFile
from flowlite.supervise.attempt.outputs.output_directory import OutputDirectory

Moved = Callable[[int], None]
"""Called with the number of bytes transferred since the last call."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory.

    Attributes:
        modified: Unix time; None if it is not known.
        kind: "file", "directory" or "other".
    """

    name: str
    size: int
    modified: float | None
    kind: str


@dataclass(frozen=True, slots=True)
class Tree:
    """All files at or below a path.

    Attributes:
        single: Whether the path is a file.
        others: Number of links, special files and directories that cannot be read.
    """

    single: bool
    files: tuple[OutputFile, ...]
    others: int = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def path_of(self, file: OutputFile, path: str) -> str:
        """The path in the storage of one of the files. `path` is that of which the tree was made."""
        return path if self.single else "/".join(filter(None, (path, file.path)))


class Changed(FlowError):
    """A file was changed after it was listed, so that nothing of it is kept."""


def copied_without(changed: Sequence[str], tree: Tree, where: str, how: str) -> FlowError:
    """The error after all files of a tree were copied but those that were changed meanwhile."""
    were, they = ("was", "it was") if len(changed) == 1 else ("were", "they were")
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    rest = "" if len(tree.files) == 1 else "; all other files were copied"
    return FlowError(
        f"{where}: {', '.join(changed[:3])}{more} {were} {how} while {they} copied; run it again{rest}"
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A file of this machine to send, and its path in the storage.

    Attributes:
        version: Tells it from other files of the same path, size and time: archives are often unpacked with one time
            for all files.
    """

    local: Path
    path: str
    size: int
    modified_ns: int
    program: bool
    version: str

    @classmethod
    def of(cls, local: Path, path: str) -> Source:
        """A file as it is now."""
        status = local.stat()
        identity = f"{status.st_dev} {status.st_ino} {status.st_ctime_ns}"
        return cls(
            local,
            path,
            status.st_size,
            status.st_mtime_ns,
            bool(status.st_mode & 0o100),
            hashlib.sha256(identity.encode()).hexdigest()[:16],
        )

    def digest(self) -> str:
        """The sha256 of its content."""
        with self.local.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class Storage(Protocol):
    """The files of one volume or bucket. Paths are relative, with slashes; "" is the root.

    All methods raise NotFound if the path does not exist, and FlowError if the storage cannot be used.
    """

    @property
    def name(self) -> str:
        """Its name in messages."""

    def entries(self, path: str) -> list[Entry]:
        """The entries of a directory, or the one of a file."""

    def tree(self, path: str) -> Tree:
        """All files at or below a path."""

    def is_directory(self, path: str) -> bool:
        """Whether the path is an existing directory."""

    def get(
        self, path: str, tree: Tree, destination: OutputDirectory, name: str, moved: Moved
    ) -> list[str]:
        """Copies the files of a tree of `path` to this machine. Returns the paths here that another file has.

        `name` is the local name of a single file.
        """

    def put(self, sources: list[Source], moved: Moved) -> None:
        """Copies files of this machine, over existing ones."""

    def remove(self, path: str, *, recursive: bool) -> int:
        """Removes a file, or a directory with everything in it. Returns the number of files."""


def sources_of(local: Path, target: str) -> list[Source]:
    """The file, or all files of the directory, with their paths in the storage. Links to files are followed."""
    found = []
    for path in files_below(local):
        relative = path.relative_to(local).as_posix() if path != local else ""
        found.append(Source.of(path, "/".join(filter(None, (target, relative)))))
    return found


def name_of(local: Path) -> str:
    """The name of a path, also of `.` and `..`. That of a link is its own."""
    return os.path.basename(os.path.abspath(local))


def count_others(local: Path) -> int:
    """The number of links to directories, of links that lead nowhere, and of special files, which are not sent."""
    if not local.is_dir():
        return 0
    return sum(
        path.is_symlink() if path.is_dir() else not path.is_file()
        for directory, below, names in os.walk(local)
        for path in (Path(directory, name) for name in (*below, *names))
    )


def files_below(local: Path) -> Iterator[Path]:
    """A file, or all files of a directory; links to files are followed. Raises OSError for an unreadable directory."""
    if local.is_file():
        yield local
        return

    def refuse(error: OSError) -> None:
        raise error

    for directory, below, names in os.walk(local, onerror=refuse):
        below.sort()
        for name in sorted(names):
            if (path := Path(directory, name)).is_file():
                yield path


def plain_path(text: str) -> str:
    """A path in a volume without needless slashes. Raises ConfigError if it leads out of it."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError(f"{text!r} leads out of the volume")
    return "/".join(parts)
