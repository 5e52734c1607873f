"""Reads one stream of one worker, a file with an index of times, in pieces of whole lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flowlite.node.quick_dataclass import dataclass
from flowlite.output.log_files import KINDS, Stream
from flowlite.output.time_index import TimeIndex
from flowlite.terminal import before_last_state, clean_lines

# Unfinished lines are shortened to their last state when they reach this size. Only progress bars usually do.
LONG_PENDING = 64 << 10

# Lines longer than this are returned in pieces, as are blocks with more lines than that.
LONGEST_LINE = 1 << 20
MOST_LINES = 1 << 15

# The bytes of what `terminal.clean_line` removes: C0 except tab and newline, DEL, the lead byte of C1, and the
# characters that change the direction of writing.
_CONTROLS = tuple(bytes([code]) for code in (*range(9), *range(11, 32), 127))
_BEYOND_ASCII = (
    b"\xc2",
    *(chr(c).encode() for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
)


def list_streams(directory: Path, node: int | None, rank: int | None) -> list[tuple[Stream, int]]:
    """The streams in a directory with their current sizes, sorted by attempt, node, rank and kind."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                stream = Stream.of_file(entry.name)
                if stream is None:
                    continue
                if (node is None or stream.node == node) and (rank is None or stream.rank == rank):
                    found.append((stream, entry.stat().st_size))
    except FileNotFoundError:
        return []
    found.sort(key=lambda item: (*item[0][:3], KINDS.index(item[0].kind)))
    return found


def is_clean(raw: bytes) -> bool:
    """Whether no byte could act on a terminal. May return False for harmless text, but never True for harmful text."""
    if any(code in raw for code in _CONTROLS):
        return False
    return raw.isascii() or not any(code in raw for code in _BEYOND_ASCII)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole lines of one stream, seen at one time.

    Attributes:
        stream: The stream of the lines.
        time: Unix time at which they were seen.
        start: Offset of the first line in the stream.
        skipped: Bytes left out at the start of the first line (older states of a progress bar).
        raw: The lines; ends with a newline unless the last line is unfinished.
        provisional: Whether it is the unfinished line of a worker that is still writing. The reader's position stays
            before it.
        inside: Whether it begins in the middle of a line that is too long to be returned at once.
        goes_on: Whether it ends in the middle of such a line.
    """

    stream: Stream
    time: float
    start: int
    skipped: int
    raw: bytes
    provisional: bool = False
    inside: bool = False
    goes_on: bool = False

    @property
    def end(self) -> int:
        """The offset from which a reader continues after this piece."""
        return self.start if self.provisional else self.start + self.skipped + len(self.raw)

    def count(self) -> int:
        """Number of lines."""
        return self.raw.count(b"\n") + (not self.raw.endswith(b"\n"))

    def end_after(self, lines: int, total: int) -> int:
        """As `end`, after only the first `lines` of `total` lines."""
        if lines >= total:
            return self.end
        return self.start + (self.skipped + self._index_after(lines) if lines else 0)

    def without_first(self, lines: int) -> Piece:
        """The piece without its first `lines`."""
        cut = self._index_after(lines)
        start = self.start + self.skipped + cut
        return replace(
            self, start=start, skipped=0, raw=self.raw[cut:], inside=self.inside and not lines
        )

    def texts(self) -> list[str]:
        """The lines, cleaned for display."""
        clean = is_clean(self.raw)
        lines = self.raw.decode("utf-8", "replace").split("\n") if clean else clean_lines(self.raw)
        if not self.raw or self.raw.endswith(b"\n"):
            lines.pop()
        return lines

    def joined(self, prefix: str) -> str:
        """The lines as one text, with `prefix` before each line except the first, without the last newline."""
        if not is_clean(self.raw):
            return f"\n{prefix}".join(self.texts())
        return self.raw.decode("utf-8", "replace").removesuffix("\n").replace("\n", f"\n{prefix}")

    def _index_after(self, lines: int) -> int:
        return _after_lines(self.raw, 0, lines)


class StreamReader:
    """Reads one stream from an offset on. Bytes after the last newline stay in `pending` until their line is complete.

    Attributes:
        offset: Where the bytes in `pending` begin, counting those that were left out.
        grown_at: When `pending` last changed, on the monotonic clock.
    """

    def __init__(self, directory: Path, stream: Stream, offset: int, since: float | None) -> None:
        self.stream = stream
        self.grown_at = 0.0
        self.pending = bytearray()
        self._path = directory / stream.file
        self._since = since
        self._line_start = offset
        self._skipped = 0
        self._shorten_at = LONG_PENDING
        self._index = TimeIndex(self._path)
        self._inside = offset > 0 and not self._begins_line(offset)
        if since is not None:
            self._index.refresh()
            first = self._index.first_since(since)
            self._move_to(max(offset, 0 if first is None else self._after_newline(first, 1)))

    @property
    def offset(self) -> int:
        """The first byte that is neither returned nor in `pending`, minus the length of `pending`."""
        return self._line_start + self._skipped

    def skip_to_tail(self, size: int, lines: int, *, complete_only: bool) -> None:
        """Moves forward to the beginning of the last `lines` lines before `size`."""
        end = self._after_newline(size, 1) if complete_only or not lines else size
        start = self._after_newline(end - 1, lines) if lines else end
        if start > self.offset:
            self._move_to(start)

    def read(
        self, size: int, block: int, *, final: bool, provisional: bool = False
    ) -> Iterator[Piece]:
        """Yields the lines between the offset and `size`, in pieces. With `final`, includes an unfinished last line.

        With `provisional`, an unfinished last line is returned, but stays unread.
        """
        self._index.refresh()
        for data in _read_blocks(self._path, self.offset + len(self.pending), size, block):
            cut = data.rfind(b"\n") + 1
            if cut:
                start, skipped, inside = self._line_start, self._skipped, self._inside
                raw = bytes(self.pending) + data[:cut] if self.pending else data[:cut]
                self._move_to(start + skipped + len(raw))
                yield from self._pieces(start, skipped, raw, inside)
            if cut < len(data):
                self._hold(data[cut:])
                yield from self._too_long(max(LONG_PENDING, min(LONGEST_LINE, block)))
        if self.pending and (final or provisional):
            piece = self.unfinished(provisional=not final)
            if final:
                self._move_to(self.offset + len(self.pending))
            if piece is not None:
                yield piece

    def unfinished(self, *, provisional: bool = True) -> Piece | None:
        """The unfinished line, unless it is older than requested."""
        at = self._time_at(self._line_start)
        if not self.pending or (self._since is not None and at < self._since):
            return None
        return Piece(
            self.stream,
            at,
            self._line_start,
            self._skipped,
            bytes(self.pending),
            provisional,
            self._inside,
        )

    # Internals

    def _move_to(self, offset: int, *, inside: bool = False) -> None:
        self._line_start, self._skipped = offset, 0
        self._inside = inside
        self._shorten_at = LONG_PENDING
        self.pending = bytearray()

    def _hold(self, data: bytes) -> None:
        self.pending += data
        self.grown_at = time.monotonic()
        if len(self.pending) < self._shorten_at:
            return
        # The last state with visible text is kept, since what follows it may turn out to be invisible.
        dropped = before_last_state(bytes(self.pending))
        del self.pending[:dropped]
        self._skipped += dropped
        self._shorten_at = max(LONG_PENDING, 2 * len(self.pending))

    def _too_long(self, longest: int) -> Iterator[Piece]:
        """Yields the part of an unfinished line that is too long to be held."""
        if len(self.pending) < longest:
            return
        piece = self.unfinished(provisional=False)
        # A UTF-8 character is not split.
        cut = len(self.pending)
        while cut > len(self.pending) - 4 and self.pending[cut - 1] & 0xC0 == 0x80:
            cut -= 1
        if self.pending[cut - 1] & 0xC0 == 0xC0:
            cut -= 1
        rest = bytes(self.pending[cut:])
        self._move_to(self.offset + cut, inside=True)
        self.pending += rest
        if piece is not None:
            yield replace(piece, raw=piece.raw[:cut], goes_on=True)

    def _begins_line(self, offset: int) -> bool:
        before = b"".join(_read_blocks(self._path, offset - 1, offset, 1))
        return before in (b"", b"\n")

    def _pieces(self, start: int, skipped: int, raw: bytes, inside: bool) -> Iterator[Piece]:
        """Splits lines where the time at which their first byte was seen changes, and where there are very many."""
        origin = start + skipped
        taken = 0
        while taken < len(raw):
            begin = origin + taken if taken else start
            change = self._index.change_after(begin)
            cut = len(raw)
            if change is not None and change < origin + len(raw):
                # A line that began before the boundary has the earlier time.
                cut = raw.find(b"\n", max(change - 1 - origin, taken)) + 1 or len(raw)
            if raw.count(b"\n", taken, cut) > MOST_LINES:
                cut = _after_lines(raw, taken, MOST_LINES)
            at = self._time_at(begin)
            if self._since is None or at >= self._since:
                part = raw if cut - taken == len(raw) else raw[taken:cut]
                yield Piece(
                    self.stream,
                    at,
                    begin,
                    0 if taken else skipped,
                    part,
                    inside=inside and not taken,
                )
            taken = cut

    def _time_at(self, offset: int) -> float:
        at = self._index.time_at(offset)
        if at is not None:
            return at
        try:
            return self._path.stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def _after_newline(self, end: int, count: int) -> int:
        """The offset after the `count`-th newline before `end`, counted backwards; 0 if there are fewer."""
        while end > 0:
            start = max(0, end - LONG_PENDING)
            data = b"".join(_read_blocks(self._path, start, end, LONG_PENDING))
            found = data.count(b"\n")
            if found < count:
                count -= found
                end = start
                continue
            at = len(data)
            for _ in range(count):
                at = data.rindex(b"\n", 0, at)
            return start + at + 1
        return 0


def _after_lines(raw: bytes, start: int, lines: int) -> int:
    """The end of the given number of lines from `start` on."""
    for _ in range(lines):
        start = raw.index(b"\n", start) + 1
    return start


def _read_blocks(path: Path, start: int, end: int, size: int) -> Iterator[bytes]:
    """Yields the bytes of a file between two offsets. The file is not kept open, since there may be thousands."""
    while start < end:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            data = file.read(min(size, end - start))
        if not data:
            return
        start += len(data)
        yield data
