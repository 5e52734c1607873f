"""When the bytes of a log file were seen, from the index beside it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import BinaryIO

from flowlite.output.log_files import INDEX_RECORD, index_of

# The most records of an index that are in memory. A log of some gigabytes may have millions.
_WINDOW = 1024
# Clocks of nodes may be wrong. Times outside of these bounds cannot be formatted.
_EARLIEST, _LATEST = 0.0, 1e11


class TimeIndex:
    """The index of one log file.

    Its offsets and times only grow (`log_writer.py`), so a record is found by bisection in the file. Only the records
    around the last one that was asked for are in memory.
    """

    def __init__(self, log: Path) -> None:
        self._path = index_of(log)
        self._records = 0
        # The window: consecutive records, and the number of the first.
        self._first = 0
        self._offsets, self._times = array("Q"), array("d")

    def refresh(self) -> None:
        """Takes note of records that were added to the file."""
        try:
            self._records = self._path.stat().st_size // INDEX_RECORD.size
        except FileNotFoundError:
            self._records = 0

    def time_at(self, offset: int) -> float | None:
        """The time at which the byte at an offset was seen; None if that is not known of any byte."""
        self._move_to(offset)
        if not self._times:
            return None
        return self._times[max(0, bisect_right(self._offsets, offset) - 1)]

    def change_after(self, offset: int) -> int | None:
        """The first offset after this one whose byte was seen at another time, if there is one."""
        self._move_to(offset)
        following = bisect_right(self._offsets, offset)
        return self._offsets[following] if following < len(self._offsets) else None

    def first_since(self, since: float) -> int | None:
        """An offset before which every byte was seen before `since`; None if no time is known."""
        if not self._records:
            return None
        with open(self._path, "rb", buffering=0) as file:
            number = bisect_left(range(self._records), since, key=lambda n: _read(file, n)[1])
            return _read(file, min(number, self._records - 1))[0]

    def _move_to(self, offset: int) -> None:
        """Moves the window so that it has the record of the byte at `offset` and the one after, if these exist."""
        if self._covers(offset):
            return
        with open(self._path, "rb", buffering=0) as file:
            if self._offsets and offset >= self._offsets[-1]:
                # Usually the log is read from the beginning to the end.
                self._load(file, self._first + len(self._offsets) - 1, self._times[-1])
                if self._covers(offset):
                    return
            number = bisect_right(range(self._records), offset, key=lambda n: _read(file, n)[0])
            self._load(file, max(0, number - 1), _EARLIEST)

    def _covers(self, offset: int) -> bool:
        loaded = len(self._offsets)
        if not loaded:
            return not self._records
        begins = self._first == 0 or self._offsets[0] <= offset
        return begins and (offset < self._offsets[-1] or self._first + loaded >= self._records)

    def _load(self, file: BinaryIO, first: int, latest: float) -> None:
        file.seek(first * INDEX_RECORD.size)
        data = file.read(min(_WINDOW, self._records - first) * INDEX_RECORD.size)
        self._first = first
        self._offsets, self._times = array("Q"), array("d")
        for offset, at in INDEX_RECORD.iter_unpack(
            data[: len(data) - len(data) % INDEX_RECORD.size]
        ):
            # A log that an earlier version wrote may have times that decrease, where a clock was set back.
            if _EARLIEST <= at <= _LATEST:
                latest = max(latest, at)
            self._offsets.append(offset)
            self._times.append(latest)


def _read(file: BinaryIO, number: int) -> tuple[int, float]:
    file.seek(number * INDEX_RECORD.size)
    record: tuple[int, float] = INDEX_RECORD.unpack(file.read(INDEX_RECORD.size))
    return record
