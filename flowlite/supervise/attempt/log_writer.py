"""What the workers wrote, kept here byte for byte: from the live stream, and afterwards from the disks of the nodes.

Bytes go to their file before they are acknowledged to the node, which keeps them until its own end, so a crash in
between costs nothing: the length of the file says where to go on. Nothing is forced to disk per chunk.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from flowlite.supervise.record.paths import TaskPaths

_RECORD = struct.Struct("<Qd")
_MOST_OPEN = 256
LOGS = ("out", "err", "setup")


def logs_of(rank: int, workers_per_node: int) -> tuple[str, ...]:
    """The logs that a rank may have; what a node's setup said is kept with its first one."""
    return LOGS if rank % workers_per_node == 0 else LOGS[:-1]


class Collector:
    """The streams of one attempt. Safe to use from several threads, for different ranks at a time."""

    def __init__(self, paths: TaskPaths, attempt: int, workers_per_node: int) -> None:
        self._paths = paths
        self._attempt = attempt
        self._workers_per_node = workers_per_node
        self._open: OrderedDict[tuple[int, str], _Stream] = OrderedDict()
        self._lock = threading.RLock()
        self._sizes: dict[tuple[int, str], int] = self._found()

    def offsets(self) -> dict[str, int]:
        """How much of each stream is here: "<rank>.<stream>" -> bytes."""
        return {f"{rank}.{stream}": size for (rank, stream), size in self._sizes.items()}

    def size(self, rank: int, stream: str) -> int:
        """How much of one stream is here."""
        return self._sizes.get((rank, stream), 0)

    def missing(self, rank: int, sizes: dict[str, int]) -> list[str]:
        """Which streams of a rank are not here up to these final sizes."""
        return [stream for stream in LOGS if self.size(rank, stream) < sizes.get(stream, 0)]

    def add(self, rank: int, node: int, stream: str, offset: int, at: float, data: bytes) -> None:
        """Writes a piece; what of it is here already is left out.

        Raises:
            OSError: It could not be written, and is then not here.
            ValueError: It begins beyond the end of what is here.
        """
        with self._lock:
            have = self.size(rank, stream)
            if offset > have:
                raise ValueError(
                    f"rank {rank} {stream}: bytes from {offset} came when {have} were here"
                )
            fresh = memoryview(data)[have - offset :]
            if fresh:
                self._stream(rank, node, stream).append(fresh, have, at)
                self._sizes[rank, stream] = have + len(fresh)

    def close(self) -> None:
        """Gives the files back. `add` may open them again."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _found(self) -> dict[tuple[int, str], int]:
        found = {}
        prefix = f"a{self._attempt}.n"
        with os.scandir(self._paths.logs) as entries:
            for entry in entries:
                parts = entry.name.split(".")
                if entry.name.startswith(prefix) and len(parts) == 4 and parts[3] in LOGS:
                    found[int(parts[2][1:]), parts[3]] = entry.stat().st_size
        return found

    def _stream(self, rank: int, node: int, stream: str) -> _Stream:
        key = (rank, stream)
        found = self._open.get(key)
        if found is None:
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            found = _Stream(self._paths.stream(self._attempt, node, rank, stream))
            self._open[key] = found
        self._open.move_to_end(key)
        return found


class _Stream:
    """A log file and its index, open for appending."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._data = os.open(path, flags, 0o600)
        try:
            self._index = os.open(f"{path}.idx", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            os.close(self._data)
            raise
        self._indexed = self._last_indexed()

    def append(self, data: memoryview, offset: int, at: float) -> None:
        """All of it or nothing."""
        # The index first, so that no reader sees bytes without their time; a crash in between leaves a record for the
        # bytes that will come instead.
        if self._indexed != offset:
            _write(self._index, memoryview(_RECORD.pack(offset, at)))
            self._indexed = offset
        try:
            _write(self._data, data)
        except OSError:
            os.ftruncate(self._data, offset)
            raise

    def close(self) -> None:
        os.close(self._data)
        os.close(self._index)

    def _last_indexed(self) -> int:
        size = os.fstat(self._index).st_size
        if size % _RECORD.size:
            size -= size % _RECORD.size
            os.ftruncate(self._index, size)
        if size == 0:
            return -1
        last: int = _RECORD.unpack(os.pread(self._index, _RECORD.size, size - _RECORD.size))[0]
        return last


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def add_all(
    collector: Collector,
    rank: int,
    node: int,
    stream: str,
    offset: int,
    blocks: Iterable[bytes],
    at: float,
) -> None:
    """Adds blocks of which the first one begins at `offset`.

    They keep the places they were read from: the same bytes may come from elsewhere meanwhile, such as an earlier
    reading that was given up and now goes on.
    """
    for block in blocks:
        collector.add(rank, node, stream, offset, at, block)
        offset += len(block)
