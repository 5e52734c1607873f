"""The file that calls and results travel in: a JSON header, aligned parts, and a hash over all of it.

    magic (8 bytes) | header length (4, little endian) | header, JSON | padding | part | padding | part ...
    | SHA-256 of all before (32)

Every part begins at a multiple of 64 bytes, so that arrays can be used where they lie in the mapped file.
The header says where the parts are ("parts": [[offset, size], ...], offsets counted from the first multiple
of 64 behind the header) and whatever the writer adds. The file is written once, the hash computed meanwhile
on another core, and appears under its name only when whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"FLOWv1\r\n"
ALIGNMENT = 64
_PRELUDE = struct.Struct("<8sI")
_DIGEST = 32
_MAX_HEADER = 64 * 1024 * 1024
# Below this, starting a thread costs more than hashing.
_THREAD_FROM = 1024 * 1024
# One writev takes at most IOV_MAX (1024) pieces; one write at most 2 GiB - 4 KiB on Linux.
_MOST_PIECES = 512
_LARGEST_WRITE = 256 * 1024 * 1024
# What this process, or the one it was forked from, has hashed already; so a node's ranks do not hash a large call each.
_verified: dict[tuple[int, ...], str] = {}

Piece = bytes | bytearray | memoryview


class EnvelopeError(Exception):
    """The file is missing, cut off, damaged, or not the one that was expected."""


@dataclass(frozen=True)
class Written:
    """An envelope on disk; `sha256` is that of the whole file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Envelope:
    """An envelope that has been verified: its header, and views of its parts (writable, private to this process)."""

    header: dict[str, Any]
    parts: list[memoryview]


def write_envelope(
    path: str | os.PathLike[str], header: dict[str, Any], parts: Sequence[Sequence[Piece]]
) -> Written:
    """Write the file atomically; each part is given in pieces, which are not copied. Raises OSError."""
    pieces = list(_pieces(header, parts))
    size = sum(len(piece) for piece in pieces) + _DIGEST
    with _atomically(path) as descriptor:
        whole = _Hashing(pieces, threaded=size >= _THREAD_FROM)
        _write_all(descriptor, pieces)
        body = whole.result()
        digest = body.digest()
        _write_all(descriptor, [digest])
        body.update(digest)
    return Written(body.hexdigest(), size)


def open_envelope(path: str | os.PathLike[str], *, sha256: str | None = None) -> Envelope:
    """Map the file and verify it, before anything in it is looked at.

    Args:
        path: The file. It stays mapped for as long as a part is in use.
        sha256: What the whole file must hash to. Without it, the hash inside the file is checked, which tells damage
            but not exchange.
    """
    data, status = _map(path)
    if sha256 is None:
        _verify_trailer(data, path)
    else:
        _verify_whole(data, status, path, sha256)
    return _parse(data, path)


def _map(path: str | os.PathLike[str]) -> tuple[memoryview, os.stat_result]:
    """The file as writable memory of this process only: pages are read when touched, copied when written."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return memoryview(mapped), os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        raise EnvelopeError(f"{os.fspath(path)} cannot be read: {error}") from None


def _verify_whole(
    data: memoryview, status: os.stat_result, path: str | os.PathLike[str], sha256: str
) -> None:
    """Check the file against a hash that came another way; once per file and process, its children included.

    A file counts as the same while its inode, size and times are: changing it and setting the change time
    back takes root.
    """
    identity = (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    if _verified.get(identity) == sha256:
        return
    if hashlib.sha256(data).hexdigest() != sha256:
        raise EnvelopeError(f"{os.fspath(path)} is not the file that was sent: its SHA-256 differs")
    _verified[identity] = sha256


def _verify_trailer(data: memoryview, path: str | os.PathLike[str]) -> None:
    """Check the hash that the file itself carries."""
    if len(data) < _PRELUDE.size + _DIGEST:
        raise EnvelopeError(f"{os.fspath(path)} is cut off: {len(data)} bytes")
    if hashlib.sha256(data[:-_DIGEST]).digest() != bytes(data[-_DIGEST:]):
        raise EnvelopeError(f"{os.fspath(path)} is cut off or damaged: its hash does not match")


def _parse(data: memoryview, path: str | os.PathLike[str]) -> Envelope:
    """Header and parts of data that has been verified."""
    try:
        magic, length = _PRELUDE.unpack_from(data)
        if magic != MAGIC or length > _MAX_HEADER:
            raise ValueError("it does not begin as such a file does")
        start = _PRELUDE.size + length
        header = json.loads(bytes(data[_PRELUDE.size : start]))
        base = _aligned(start)
        end = len(data) - _DIGEST
        parts = []
        for offset, size in header["parts"]:
            if offset < 0 or size < 0 or base + offset + size > end:
                raise ValueError("a part lies outside of the file")
            parts.append(data[base + offset : base + offset + size])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        name = os.fspath(path)
        raise EnvelopeError(f"{name} is not a call or result of flowlite: {error}") from None
    return Envelope(header, parts)


def _pieces(header: dict[str, Any], parts: Sequence[Sequence[Piece]]) -> Iterator[Piece]:
    """All bytes of the file but the hash at its end."""
    table = []
    offset = 0
    for part in parts:
        size = sum(len(piece) for piece in part)
        table.append([offset, size])
        offset = _aligned(offset + size)
    text = json.dumps({**header, "parts": table}, separators=(",", ":")).encode()
    if len(text) > _MAX_HEADER:
        raise EnvelopeError(f"the header is too large: {len(text)} bytes")
    yield _PRELUDE.pack(MAGIC, len(text)) + text + _padding(_PRELUDE.size + len(text))
    for part, (_, size) in zip(parts, table, strict=True):
        yield from part
        if padding := _padding(size):
            yield padding


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _padding(position: int) -> bytes:
    return bytes(_aligned(position) - position)


class _Hashing:
    """SHA-256 over pieces, in a thread of its own where that pays (hashlib lets go of the interpreter lock)."""

    def __init__(self, pieces: Iterable[Piece], *, threaded: bool) -> None:
        self._hash = hashlib.sha256()
        self._pieces = pieces
        self._thread = threading.Thread(target=self._run, daemon=True) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def _run(self) -> None:
        for piece in self._pieces:
            self._hash.update(piece)

    def result(self) -> hashlib._Hash:
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        return self._hash


@contextlib.contextmanager
def _atomically(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor whose file takes the name when all went well, and is gone otherwise."""
    target = os.fspath(path)
    temporary = f"{target}.{os.getpid()}.{threading.get_ident()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_all(descriptor: int, pieces: Sequence[Piece]) -> None:
    """Write every byte, many small pieces in one system call, whatever the kernel takes at a time."""
    batch: list[memoryview] = []
    pending = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            part, view = view[:_LARGEST_WRITE], view[_LARGEST_WRITE:]
            batch.append(part)
            pending += len(part)
            if len(batch) >= _MOST_PIECES or pending >= _LARGEST_WRITE:
                _flush(descriptor, batch)
                batch, pending = [], 0
    _flush(descriptor, batch)


def _flush(descriptor: int, batch: list[memoryview]) -> None:
    while batch:
        written = os.writev(descriptor, batch)
        while batch and written >= len(batch[0]):
            written -= len(batch.pop(0))
        if written:
            batch[0] = batch[0][written:]
