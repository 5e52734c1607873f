"""The file format of calls and results: a JSON header and aligned parts, verified by a hash.

    magic (8 bytes) | header length (4, little endian) | header, JSON | padding | part | padding | part ... | seal (32)

A call is identified by the SHA-256 of its whole file, which is sent to the node separately; it has no seal. A result
ends with a seal: the SHA-256 over the SHA-256 of each 16 MiB before it, so that several cores compute it.

Every part begins at a multiple of 64 bytes, so that arrays can be used in place in the mapped file. The header gives
the positions of the parts ("parts": [[offset, size], ...], with offsets counted from the first multiple of 64 behind
the header) and any fields that the writer adds. The file is written once while the hash is computed on other cores,
and gets its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..quick_dataclass import dataclass
from ..system import atomic_files

ADDRESSED = b"FLOWc1\r\n"
SEALED = b"FLOWr1\r\n"
ALIGNMENT = 64
_PRELUDE = struct.Struct("<8sI")
_SEAL = 32
_BLOCK = 16 * 1024 * 1024
_MOST_THREADS = 8
_MAX_HEADER = 64 * 1024 * 1024
# For results, whose reader does not trust the writer: a parsed document takes up to 30 times its size in memory.
_MAX_SEALED_HEADER = 4 * 1024 * 1024
MOST_PARTS = 100_000
"""Large parts of a result. The header has room for the positions of more than that."""
# Below this, starting a thread costs more than hashing.
_THREAD_FROM = 1024 * 1024
# One writev takes at most IOV_MAX (1024) pieces; one write at most 2 GiB - 4 KiB on Linux.
_MOST_PIECES = 512
_LARGEST_WRITE = 256 * 1024 * 1024
# Hashes verified by this process or the one it was forked from, so that the ranks of a node hash a large call once.
_verified: dict[tuple[int, ...], str] = {}

Piece = bytes | bytearray | memoryview


class EnvelopeError(Exception):
    """The file is missing, truncated, damaged, or not the expected one."""


@dataclass(frozen=True)
class Envelope:
    """A verified envelope: its header, and views of its parts (writable, private to this process)."""

    header: dict[str, Any]
    parts: list[memoryview]


def write_envelope(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    parts: Sequence[Sequence[Piece]],
    *,
    sealed: bool,
) -> str:
    """Writes the file atomically. Each part is given in pieces, which are not copied. Raises OSError.

    Returns:
        The SHA-256 of the whole file; of a sealed one, its seal.
    """
    pieces = list(_pieces(SEALED if sealed else ADDRESSED, header, parts))
    size = sum(len(piece) for piece in pieces)
    hash_them = functools.partial(_seal_of if sealed else _digest_of, pieces)
    with (
        atomic_files.new(path) as descriptor,
        _hashing(hash_them, threaded=size >= _THREAD_FROM) as result,
    ):
        _write_all(descriptor, pieces)
        digest = result()
        if sealed:
            _write_all(descriptor, [digest])
    return digest.hex()


def open_envelope(path: str | os.PathLike[str], *, sha256: str | None = None) -> Envelope:
    """Maps the file and verifies it before anything in it is read.

    Args:
        path: The file. It stays mapped for as long as a part is in use.
        sha256: The hash that the whole file must have. Without it, the seal inside the file is checked, which detects
            damage but not replacement.
    """
    data, status = _map(path)
    if sha256 is None:
        _verify_seal(data, path)
        return _parse(data[:-_SEAL], path, SEALED)
    _verify_whole(data, status, path, sha256)
    return _parse(data, path, ADDRESSED)


def _map(path: str | os.PathLike[str]) -> tuple[memoryview, os.stat_result]:
    """Maps the file as memory private to this process: pages are read when touched and copied when written."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return memoryview(mapped), os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        raise EnvelopeError(f"{os.fspath(path)} cannot be read: {error}") from None


def _verify_whole(
    data: memoryview, status: os.stat_result, path: str | os.PathLike[str], sha256: str
) -> None:
    """Checks the file against a separately received hash, once per file and process, including forked children.

    A file counts as unchanged while its inode, size and times are the same. Changing it and restoring the change time
    requires root.
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


def _verify_seal(data: memoryview, path: str | os.PathLike[str]) -> None:
    """Checks the hash that the file itself contains."""
    if len(data) < _PRELUDE.size + _SEAL:
        raise EnvelopeError(f"{os.fspath(path)} is cut off: {len(data)} bytes")
    if _seal_of([data[:-_SEAL]]) != bytes(data[-_SEAL:]):
        raise EnvelopeError(f"{os.fspath(path)} is cut off or damaged: its hash does not match")


def _seal_of(pieces: Iterable[Piece]) -> bytes:
    """Computes the seal on several cores: of each block by itself, since SHA-256 cannot be divided."""
    blocks = list(_blocks(pieces))
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(blocks))
    if threads < 2:
        digests = [_digest_of(block) for block in blocks]
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            digests = list(pool.map(_digest_of, blocks))
    return hashlib.sha256(b"".join(digests)).digest()


def _blocks(pieces: Iterable[Piece]) -> Iterator[list[memoryview]]:
    """Yields views of each 16 MiB of all pieces in a row."""
    block: list[memoryview] = []
    room = _BLOCK
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            block.append(view[:room])
            view, room = view[room:], max(0, room - len(view))
            if room == 0:
                yield block
                block, room = [], _BLOCK
    if block:
        yield block


def _digest_of(pieces: Iterable[Piece]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _parse(data: memoryview, path: str | os.PathLike[str], expected: bytes) -> Envelope:
    """Splits verified data into header and parts; `expected` is the magic."""
    try:
        magic, length = _PRELUDE.unpack_from(data)
        if magic != expected or length > _most_header(magic):
            raise ValueError("it does not begin as such a file does")
        start = _PRELUDE.size + length
        header = json.loads(bytes(data[_PRELUDE.size : start]))
        base = _aligned(start)
        parts = []
        for offset, size in header["parts"]:
            if offset < 0 or size < 0 or base + offset + size > len(data):
                raise ValueError("a part lies outside of the file")
            parts.append(data[base + offset : base + offset + size])
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        name = os.fspath(path)
        raise EnvelopeError(f"{name} is not a call or result of flowlite: {error}") from None
    return Envelope(header, parts)


def _pieces(
    magic: bytes, header: dict[str, Any], parts: Sequence[Sequence[Piece]]
) -> Iterator[Piece]:
    """Yields all bytes of the file except the seal."""
    table = []
    offset = 0
    for part in parts:
        size = sum(len(piece) for piece in part)
        table.append([offset, size])
        offset = _aligned(offset + size)
    text = json.dumps({**header, "parts": table}, separators=(",", ":")).encode()
    if len(text) > _most_header(magic):
        raise EnvelopeError(f"the header is too large: {len(text)} bytes, for {len(parts)} parts")
    yield _PRELUDE.pack(magic, len(text)) + text + _padding(_PRELUDE.size + len(text))
    for part, (_, size) in zip(parts, table, strict=True):
        yield from part
        if padding := _padding(size):
            yield padding


def _most_header(magic: bytes) -> int:
    return _MAX_SEALED_HEADER if magic == SEALED else _MAX_HEADER


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _padding(position: int) -> bytes:
    return bytes(_aligned(position) - position)


@contextlib.contextmanager
def _hashing(function: Callable[[], bytes], *, threaded: bool) -> Iterator[Callable[[], bytes]]:
    """Computes a hash in a thread meanwhile, where that is worth it (hashlib releases the GIL)."""
    if not threaded:
        yield function
        return
    # A generator rather than an object with a reference to itself: CPython 3.11 crashes (mbuf_clear) when the garbage
    # collector, and not the last reference, frees views of views among the pieces.
    digests: list[bytes] = []
    thread = threading.Thread(target=lambda: digests.append(function()), daemon=True)
    thread.start()

    def result() -> bytes:
        thread.join()
        return digests[0]

    try:
        yield result
    finally:
        # The caller owns the hashed memory and may change it as soon as we return.
        thread.join()


def _write_all(descriptor: int, pieces: Sequence[Piece]) -> None:
    """Writes every byte, many small pieces per system call, and continues after partial writes."""
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
