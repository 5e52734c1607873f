"""Writes the workers' output to files, byte for byte: first from the live stream, afterwards from the nodes' disks.

Bytes are written to their file before they are acknowledged to the node, which keeps them until its own end. After a
crash, the length of the file says where to go on. Chunks are not synced to disk one by one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from flowlite.connect.fetching import leave_room, steady
from flowlite.node.system import atomic_files
from flowlite.output.log_files import INDEX_RECORD, Stream, index_of
from flowlite.supervise.record.paths import TaskPaths

_MOST_OPEN = 256
LOGS = ("out", "err", "setup")


def logs_of(rank: int, workers_per_node: int) -> tuple[str, ...]:
    """Returns the logs that a rank may have. Output of a node's setup is stored with its first rank."""
    return LOGS if rank % workers_per_node == 0 else LOGS[:-1]


class Collector:
    """The streams of one attempt. Safe to use from several threads for different ranks at the same time.

    Attributes:
        total: Bytes written of all streams.
    """

    def __init__(self, paths: TaskPaths, attempt: int) -> None:
        self._paths = paths
        self._attempt = attempt
        self._open: OrderedDict[tuple[int, str], _Stream] = OrderedDict()
        self._lock = threading.RLock()
        self._sizes: dict[tuple[int, str], int] = self._found()
        self.total = sum(self._sizes.values())

    def offsets(self) -> dict[str, int]:
        """Returns the bytes written of each stream: "<rank>.<stream>" -> bytes."""
        return {f"{rank}.{stream}": size for (rank, stream), size in self._sizes.items()}

    def size(self, rank: int, stream: str) -> int:
        """Returns the bytes written of one stream."""
        return self._sizes.get((rank, stream), 0)

    def missing(self, rank: int, sizes: dict[str, int]) -> list[str]:
        """Returns the streams of a rank that are shorter than these final sizes."""
        return [stream for stream in LOGS if self.size(rank, stream) < sizes.get(stream, 0)]

    def add(self, rank: int, node: int, stream: str, offset: int, at: float, data: bytes) -> None:
        """Writes a chunk, without the bytes that are there already.

        Raises:
            OSError: The chunk could not be written, or the logs begin to fill the disk; none of it was written.
            ValueError: The chunk begins beyond the end of the file.
        """
        with self._lock:
            have = self.size(rank, stream)
            if offset > have:
                raise ValueError(
                    f"rank {rank} {stream}: bytes from {offset} came when {have} were here"
                )
            fresh = memoryview(data)[have - offset :]
            if fresh:
                leave_room(self._paths.logs, self.total)
                self._stream(rank, node, stream).append(fresh, have, at)
                self._sizes[rank, stream] = have + len(fresh)
                self.total += len(fresh)

    def add_all(
        self,
        rank: int,
        node: int,
        stream: str,
        offset: int,
        blocks: Iterable[bytes],
        size: int | None,
    ) -> None:
        """Adds consecutive blocks as they come, of which the first begins at `offset`.

        Each block is written at the offset it was read from, since the same bytes may arrive from another reader
        meanwhile, such as an earlier one that was given up and continues.

        Args:
            size: Of the stream, if its worker is known to have ended. What comes beyond it is left out: a node may send
                without end.
        """
        at = time.time()
        for block in steady(blocks):
            fresh = block if size is None else block[: max(0, size - offset)]
            self.add(rank, node, stream, offset, at, fresh)
            offset += len(fresh)
            if len(fresh) < len(block):
                return

    def close(self) -> None:
        """Closes the files. `add` may open them again."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _found(self) -> dict[tuple[int, str], int]:
        found = {}
        with os.scandir(self._paths.logs) as entries:
            for entry in entries:
                stream = Stream.of_file(entry.name)
                if stream is not None and stream.attempt == self._attempt:
                    found[stream.rank, stream.kind] = entry.stat().st_size
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
            self._index = os.open(index_of(path), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            os.close(self._data)
            raise
        self._indexed, self._time = self._last_indexed()

    def append(self, data: memoryview, offset: int, at: float) -> None:
        """Writes all of the data or nothing."""
        # The index is written first, so that no reader sees bytes without their time. After a crash in between, the
        # record applies to the bytes that come instead.
        if self._indexed != offset:
            # Times never decrease, so that they can be searched, also if a clock was set back.
            self._time = max(self._time, at)
            atomic_files.write(self._index, INDEX_RECORD.pack(offset, self._time))
            self._indexed = offset
        try:
            atomic_files.write(self._data, data)
        except OSError:
            os.ftruncate(self._data, offset)
            raise

    def close(self) -> None:
        os.close(self._data)
        os.close(self._index)

    def _last_indexed(self) -> tuple[int, float]:
        """Returns offset and time of the last record; (-1, 0.0) if there is none."""
        size = os.fstat(self._index).st_size
        if size % INDEX_RECORD.size:
            size -= size % INDEX_RECORD.size
            os.ftruncate(self._index, size)
        if size == 0:
            return -1, 0.0
        last: tuple[int, float] = INDEX_RECORD.unpack(
            os.pread(self._index, INDEX_RECORD.size, size - INDEX_RECORD.size)
        )
        return last
