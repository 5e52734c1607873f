"""Files fetched from a node. The target appears only when it is complete.

The fetch of a file that no longer changes, and whose size is known, resumes where an earlier one broke off; the partial
content is stored beside the target as `.NAME.part`. Several readers may fetch the same file at a time, for example one
that hangs in a dead connection and its successor. Each writes at its own offset, and the bytes are the same.

What a node sends has bounds. A file of known size takes its size; one of unknown size, or a log that still grows,
leaves a part of the disk free (`leave_room`). One that comes too slowly counts as not coming (`steady`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from flowlite.node.system import atomic_files
from flowlite.node.system.byte_sizes import human_size, room_on_disk

Read = Callable[[int], Iterator[bytes]]
"""Yields the bytes of the file from an offset to its end."""

# Part of the disk that a file without a known end leaves free, unless it is smaller than what is free.
_LAST_PART = 0.05
# The least that has to come in so many seconds. A connection on which nothing comes at all has its own timeout.
_LEAST, _WITHIN = 64 << 10, 60.0


class Changed(OSError):
    """A file has another size than was known: it has changed since, or its source is wrong."""


class Partial:
    """A file of known size that is being fetched."""

    def __init__(self, target: Path, size: int) -> None:
        self.target = target
        self.size = size
        self.path = target.with_name(f".{target.name}.part")

    @property
    def have(self) -> int:
        """How many bytes of the file are here."""
        for path in (self.target, self.path):
            with suppress(FileNotFoundError):
                found = path.stat().st_size
                if path is self.path or found == self.size:
                    return found
        return 0

    @property
    def whole(self) -> bool:
        """Whether the complete file is here, under its final name."""
        with suppress(FileNotFoundError):
            return self.target.stat().st_size == self.size
        return False

    def begin(self) -> int:
        """Returns the offset to read from. Raises OSError (ENOSPC) if the disk has no room for the rest."""
        atomic_files.make(str(self.target.parent))
        have = self.have
        if have > self.size:
            # Left by another file of that name.
            self.discard()
            have = 0
        lacking = self.size - have
        free, _ = room_on_disk(self.target.parent)
        if lacking > free:
            place = self.target.parent
            what = f"{human_size(lacking)} are to come, and {human_size(free)} are free in {place}"
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {what}")
        return have

    def add(self, offset: int, data: bytes) -> int:
        """Writes a block at its offset; returns the offset of the next.

        Raises:
            OSError: The block cannot be written, goes beyond the end of the file, or would leave a gap, since somebody
                has removed what was here before it.
        """
        if self.whole:
            return offset + len(data)
        if offset + len(data) > self.size:
            # Its source is wrong, or does not end.
            self.discard()
            what = f"more than the {self.size} bytes came that it has"
            raise Changed(errno.EFBIG, what, str(self.target))
        if offset > self.have:
            what = f"bytes from {offset} came when {self.have} were here"
            raise OSError(errno.EIO, what, str(self.target))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                offset += written
                view = view[written:]
        finally:
            os.close(descriptor)
        return offset

    def finish(self) -> None:
        """Renames the file to its target. Raises OSError if it is incomplete."""
        if self.whole:
            self.discard()
            return
        if self.have != self.size:
            what = f"{self.have} bytes of {self.size} came"
            raise Changed(errno.EIO, what, str(self.target))
        try:
            os.replace(self.path, self.target)
        except FileNotFoundError:
            # Another reader has renamed it already.
            if not self.whole:
                raise

    def discard(self) -> None:
        """Removes the partial content."""
        self.path.unlink(missing_ok=True)


def fetch(read: Read, target: Path, size: int | None) -> None:
    """Fetches a file. Without a `size` the file may still change, and is fetched from its beginning."""
    if size is None:
        _fetch_now(read, target)
        return
    partial = Partial(target, size)
    if not partial.whole:
        offset = partial.begin()
        if size == 0:
            partial.add(0, b"")
        for block in steady(read(offset)) if offset < size else ():
            offset = partial.add(offset, block)
    partial.finish()


def fetch_changing(read: Read, target: Path, size: int) -> None:
    """Fetches a file that had a size when it was listed. If it has another one by now, it is fetched as it is now."""
    try:
        fetch(read, target, size)
    except Changed:
        Partial(target, size).discard()
        _fetch_now(read, target)


def steady(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the blocks of a file that comes from a node. Raises OSError (EIO) if they come too slowly."""
    since, came = time.monotonic(), 0
    for block in blocks:
        came += len(block)
        yield block
        now = time.monotonic()
        if now - since >= _WITHIN:
            if came < _LEAST:
                what = f"only {human_size(came)} came within {now - since:.0f} s"
                raise OSError(errno.EIO, f"{os.strerror(errno.EIO)}: {what}")
            since, came = now, 0


def leave_room(directory: Path, have: int) -> None:
    """Raises OSError (ENOSPC) if a file without a known end, of which so much is here, begins to fill the disk."""
    free, whole = room_on_disk(directory)
    if have > free and free < _LAST_PART * whole:
        what = f"{human_size(have)} came, more are to come, and {human_size(free)} are free in {directory}"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {what}")


def _fetch_now(read: Read, target: Path) -> None:
    atomic_files.make(str(target.parent))
    came = 0
    with atomic_files.new(target) as descriptor:
        for block in steady(read(0)):
            leave_room(target.parent, came)
            atomic_files.write(descriptor, block)
            came += len(block)
