"""Copies files from and to the nodes of a running task, for `flow cp` and `flow outputs`."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.api.volume_files.files import files_below, name_of
from flowlite.connect import fetching
from flowlite.connect.values import File
from flowlite.errors import NotFound
from flowlite.node.quick_dataclass import dataclass
from flowlite.supervise.attempt.outputs import digests, manifest, packs
from flowlite.supervise.attempt.outputs.output_directory import NameTaken, OutputDirectory

if TYPE_CHECKING:
    from flowlite.api.node_access import NodeAccess
    from flowlite.supervise.attempt.outputs.manifest import OutputFile, OutputManifest

Moved = Callable[[int], None]
"""Called with the number of bytes transferred since the last call."""

# The most files and bytes that are sent in one batch.
_MOST_AT_ONCE = 200
_MOST_BYTES_AT_ONCE = 32 << 20


@dataclass(slots=True)
class CopyResult:
    """What was copied.

    Attributes:
        taken: Local paths where another file exists, which was not overwritten.
        left_out: Number of files that were not copied, by reason.
    """

    files: int = 0
    bytes: int = 0
    taken: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def add(self, other: CopyResult) -> None:
        """Adds what was copied from another node."""
        self.files += other.files
        self.bytes += other.bytes
        self.taken += other.taken
        for why, count in other.left_out.items():
            self.left_out[why] = self.left_out.get(why, 0) + count


class _LeftOut(Exception):
    """The node does not have a file of a directory any more, or cannot read it; the text says which."""


def outputs_of(there: NodeAccess, patterns: Sequence[str]) -> OutputManifest:
    """The files of the working directory that match the patterns now. Raises the errors of `manifest.ask`."""
    _check(there)
    return manifest.ask(there.connection, there.program, home=there.home, patterns=patterns)


def files_at(there: NodeAccess, path: str) -> OutputManifest:
    """One file, or all files of a directory. A relative path is below the working directory. Raises as `outputs_of`."""
    _check(there)
    return manifest.ask(there.connection, there.program, home=there.home, path=path)


def bring(
    there: NodeAccess,
    found: OutputManifest,
    destination: OutputDirectory,
    moved: Moved,
    *,
    below: str = "",
    name: str = "",
) -> CopyResult:
    """Copies files and links from a node to a local directory, but not files that are here with the same content.

    The task may go on meanwhile. A file that grows is copied as it is when it is read, and a removed one is left out.

    Args:
        below: Prefix of the local paths.
        name: Local name of a single file.
    """
    copied = CopyResult(left_out=dict(found.left_out))
    compared = destination.compare(
        {name or f"{below}{file.path}": file for file in found.files},
        lambda alike: digests.fetch(there.connection, there.program, found.root, alike),
    )
    for file in compared.here:
        moved(file.size)
        _count(copied, file)
    copied.taken += compared.taken
    for group in packs.groups(compared.lacking):
        changed = group
        if len(group) > 1:
            changed = _bring_pack(there, found, group, destination, copied, below)
            moved(sum(file.size for file in group) - sum(file.size for file in changed))
        for file in changed:
            path = name or f"{below}{file.path}"
            try:
                source = _source(there, found, file)
                destination.take(path, file, source, _fetching(there, found, file, moved))
            except NameTaken:
                copied.taken.append(path)
            except _LeftOut as error:
                copied.left_out[str(error)] = copied.left_out.get(str(error), 0) + 1
            else:
                _count(copied, file)
    for path, target in found.links:
        try:
            destination.link(f"{below}{path}", target)
        except NameTaken:
            copied.taken.append(f"{below}{path}")
    if not copied.taken:
        destination.finish()
    return copied


def _bring_pack(
    there: NodeAccess,
    found: OutputManifest,
    group: Sequence[OutputFile],
    destination: OutputDirectory,
    copied: CopyResult,
    below: str,
) -> list[OutputFile]:
    """Copies small files in one request. Returns those that have changed since they were listed."""
    contents = packs.fetch(there.connection, there.program, found.root, group)
    pairs = list(zip(group, contents, strict=True))
    come = [
        (f"{below}{file.path}", file, _source(there, found, file), each)
        for file, each in pairs
        if each is not None
    ]
    taken = destination.take_all(come)
    copied.taken += taken
    for path, file, _, _ in come:
        if path not in taken:
            _count(copied, file)
    return [file for file, content in pairs if content is None]


def _source(there: NodeAccess, found: OutputManifest, file: OutputFile) -> str:
    return f"{there.instance} {found.root}/{file.path}"


def _count(copied: CopyResult, file: OutputFile) -> None:
    copied.files, copied.bytes = copied.files + 1, copied.bytes + file.size


def send(there: NodeAccess, source: Path, target: str, moved: Moved) -> CopyResult:
    """Sends a file or a directory to an absolute path on the node. Contents that are there already are not sent."""
    _check(there)
    copied = CopyResult()
    batch: list[File] = []
    for path in files_below(source):
        relative = path.relative_to(source)
        place = posixpath.join(target, *relative.parts) if path != source else target
        mode = 0o700 if os.access(path, os.X_OK) else 0o600
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        batch.append(File(place, path, mode, digest))
        copied.files, copied.bytes = copied.files + 1, copied.bytes + path.stat().st_size
        if len(batch) >= _MOST_AT_ONCE or _size(batch) >= _MOST_BYTES_AT_ONCE:
            _put(there, batch, moved)
    _put(there, batch, moved)
    return copied


def place_for(there: NodeAccess, source: Path, path: str) -> str:
    """The absolute target path on the node: as with cp, inside the given path if that is a directory."""
    _check(there)
    place, is_directory = manifest.look(there.connection, there.program, home=there.home, path=path)
    if is_directory or path.endswith("/"):
        place = posixpath.join(place, name_of(source))
    return posixpath.normpath(place)


def _put(there: NodeAccess, batch: list[File], moved: Moved) -> None:
    if batch:
        there.connection.put_many(batch)
        moved(_size(batch))
        batch.clear()


def _size(batch: Sequence[File]) -> int:
    return sum(file.check() for file in batch)


def _fetching(
    there: NodeAccess, found: OutputManifest, file: OutputFile, moved: Moved
) -> Callable[[Path], None]:
    def read(offset: int) -> Iterator[bytes]:
        moved(offset)
        try:
            for block in there.connection.read(f"{found.root}/{file.path}", offset):
                moved(len(block))
                yield block
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if found.single:
                raise
            raise _LeftOut("files that the task removed while they came") from error
        except PermissionError as error:
            if found.single:
                raise
            raise _LeftOut(manifest.UNREADABLE) from error

    return lambda staged: fetching.fetch_changing(read, staged, file.size)


def _check(there: NodeAccess) -> None:
    if there.gone or not there.program:
        raise NotFound(
            "the task has ended and its node was given back, with all that was on it; next time, outputs= keeps what "
            "is wanted"
        )
