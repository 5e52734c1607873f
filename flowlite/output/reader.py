"""Reads the logs of a task: the output of its workers, from files, as labelled lines.

The supervisor writes each stream of each worker, byte for byte, to `logs/a<attempt>.n<node>.r<rank>.<out|err>`, and
beside it an index of the times at which they were seen (`log_files.py`).
Readers use only these files. Any number of them can follow the same files, and each can report its `position` and be
restarted from there. Control characters are removed for display only; the files keep the original bytes.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter, length_hint
from pathlib import Path
from typing import NamedTuple

from flowlite import terminal
from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.output import html
from flowlite.output.log_files import Stream
from flowlite.output.redact import Mask
from flowlite.output.stream_file import LONG_PENDING, Piece, StreamReader, list_streams

# The shortest and the longest pause between two checks of the files of a running task, in seconds.
SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 0.1

# The most memory for the blocks of one reader while many streams are merged, in bytes.
MERGE_MEMORY = 64 << 20
LARGEST_BLOCK = 1 << 20

GOES_ON = " … (the line goes on)"
"""Appended to a piece of a line that is too long to be returned at once; the rest comes as a line of its own."""
SMALLEST_BLOCK = 16 << 10
# The lines that a notebook shows of `task.logs()` as the value of a cell.
_LINES_IN_NOTEBOOK = 500


class LogLine(NamedTuple):
    """One line of a worker's output. `str()` gives `[Node 1] [10:30:16] text`, in the local time of this machine.

    If a node has several workers, `str()` names the rank, too: `[Node 1, rank 3] [10:30:16] text`.

    Attributes:
        node: Node rank.
        rank: Global rank of the worker.
        stream: "out" or "err"; "setup" for the output of the node's `setup=`, with the rank of its first worker.
        time: Unix time at which its first byte was seen.
        text: The line without its newline. Colours are kept; every other terminal control sequence is removed. For a
            progress bar, which overwrites itself, it is the last state. A line of more than a megabyte comes in pieces,
            all but the last of which end with `GOES_ON`.
    """

    node: int
    rank: int
    stream: str
    time: float
    text: str

    def __str__(self) -> str:
        return f"{label(self.node, self.time, self.stream)} {self.text}"


class RankedLine(LogLine):
    """A line from a node with several workers."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{label(self.node, self.time, self.stream, self.rank)} {self.text}"


def label(node: int, at: float, stream: str = "out", rank: int | None = None) -> str:
    """The label of a line: `[Node 1] [10:30:16]`, or `[Node 1 setup] [10:30:16]` for the node's setup.

    All labels of lines are made here.

    Args:
        node: Node rank.
        at: Unix time.
        stream: "out", "err" or "setup", which belongs to no rank.
        rank: Global rank, if the node has several workers.
    """
    where = f"Node {node}"
    if stream == "setup":
        where += " setup"
    elif rank is not None:
        where += f", rank {rank}"
    return f"[{where}] [{_clock(int(at))}]"


@lru_cache(maxsize=4096)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Settings:
    directory: Path
    node: int | None
    rank: int | None
    follow: bool
    tail: int | None
    since: float | None
    after: dict[str, int]
    ended: Callable[[], bool]
    closing: Callable[[], str]
    on_pause: Callable[[LogLine | None], None] | None
    mask: Mask
    label_ranks: bool


class Logs:
    """The merged output of a task. Prints as text, iterates as `LogLine`.

    Lines are merged by time across ranks. The order within one stream is always kept, and a later attempt comes after
    an earlier one. With `follow`, iteration continues until the task has ended and everything has been read; otherwise
    it ends with the current output, including the unfinished last line of a running worker. Each iteration starts again
    from the beginning.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node: int | None = None,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        after: Mapping[str, int] | None = None,
        ended: Callable[[], bool] = _never,
        closing: Callable[[], str] = str,
        on_pause: Callable[[LogLine | None], None] | None = None,
        mask: Mask | None = None,
        label_ranks: bool = False,
    ) -> None:
        """Does not read anything yet.

        Args:
            directory: Where the stream files are.
            node: Only this node rank.
            rank: Only this global rank.
            follow: Wait for more until `ended`.
            tail: Only this many of the last lines that exist at the start.
            since: Only lines seen at or after this Unix time.
            after: A `position` to continue from.
            ended: Returns whether no more will be written; called before each check of the files.
            closing: Returns a sentence to print below the lines once the task has ended, or "".
            on_pause: Called before each pause while following, with the unfinished line of a worker or None.
            mask: Masks secret values in every line.
            label_ranks: Name the rank in the label of each line, since nodes have several workers.
        """
        if tail is not None and tail < 0:
            raise ConfigError(f"tail={tail}: the number of lines must not be negative")
        self._settings = _Settings(
            directory,
            node,
            rank,
            follow,
            tail,
            since,
            dict(after or {}),
            ended,
            closing,
            on_pause,
            mask or Mask(),
            label_ranks,
        )
        self._reading = _Reading(self._settings)

    @property
    def position(self) -> dict[str, int]:
        """The position of the latest iteration: for each stream, the offset of the first byte not yet returned.

        `task.logs(after=position)` continues exactly there. An unfinished line that was shown because the task was
        still running counts as not returned, and comes in full the next time.
        """
        return self._reading.where()

    def __iter__(self) -> Iterator[LogLine]:
        self._reading = _Reading(self._settings)
        return chain.from_iterable(self._reading.lines())

    async def __aiter__(self) -> AsyncIterator[LogLine]:
        """Iterates in an event loop. Files are read in a thread, which is not held while there is nothing new."""
        import asyncio

        reading = self._reading = _Reading(self._settings)
        pause = SHORTEST_PAUSE
        while True:
            ended = await asyncio.to_thread(self._settings.ended)
            blocks = reading.lines_now(ended)
            found = False
            while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                found = True
                for line in block:
                    yield line
            if ended or not self._settings.follow:
                return
            pause = SHORTEST_PAUSE if found else min(LONGEST_PAUSE, pause * 1.5)
            await asyncio.sleep(pause)

    def __str__(self) -> str:
        return "".join(self.blocks()).removesuffix("\n")

    def __repr__(self) -> str:
        return (
            f"<output of a task in {self._settings.directory}; print it, or iterate over its lines>"
        )

    def _repr_html_(self) -> str:
        settings = replace(self._settings, follow=False)
        if settings.tail is None:
            settings = replace(settings, tail=_LINES_IN_NOTEBOOK)
        return html.lines("".join(_Reading(settings).blocks()).removesuffix("\n"))

    def blocks(self) -> Iterator[str]:
        """The same lines as labelled text, many at a time, each with a newline; at the end the closing sentence.

        This is much faster than formatting lines one by one.
        """
        self._reading = _Reading(self._settings)
        return self._reading.blocks()

    # For callers that wait themselves, and must not be blocked here

    def take(self, ended: bool) -> Iterator[str]:
        """What is new since the last call, as labelled text, many lines at a time; never waits.

        Args:
            ended: Whether no more will be written. The caller must have checked this before the call.
        """
        return self._reading.take(ended)

    def unfinished(self) -> LogLine | None:
        """The unfinished line of a worker, such as a progress bar, as the last `take` found it."""
        return self._reading.unfinished()


class _Reading:
    """One iteration over the logs."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._readers: dict[str, StreamReader] = {}
        self._position = dict(settings.after)
        # Only the lines that exist at the start are reduced to the last ones.
        self._tail = settings.tail
        self._finished = False
        # The piece whose lines are being returned, their number, and the texts that were not returned yet.
        self._current: tuple[Piece, int, Iterator[str]] | None = None

    def where(self) -> dict[str, int]:
        if self._current is not None:
            piece, count, rest = self._current
            self._position[piece.stream.file] = piece.end_after(count - length_hint(rest), count)
        return dict(self._position)

    def lines(self) -> Iterator[Iterator[LogLine]]:
        return self._as_lines(self._pieces())

    def lines_now(self, ended: bool) -> Iterator[Iterator[LogLine]]:
        """As `lines`, for the current content of the files."""
        yield from self._as_lines(self._round(ended))

    def _as_lines(self, pieces: Iterator[Piece]) -> Iterator[Iterator[LogLine]]:
        for piece in pieces:
            texts = _texts(piece, self._settings.mask)
            rest = iter(texts)
            self._current = (piece, len(texts), rest)
            yield _lines(piece, rest, self._settings)
            self._current = None
            self._position[piece.stream.file] = piece.end

    def take(self, ended: bool) -> Iterator[str]:
        return self._as_text(self._round(ended))

    def blocks(self) -> Iterator[str]:
        yield from self._as_text(self._pieces())
        closing = self._settings.closing() if self._finished else ""
        if closing:
            yield f"{terminal.in_one_line(closing)}\n"

    def _as_text(self, pieces: Iterator[Piece]) -> Iterator[str]:
        for piece in pieces:
            self._position[piece.stream.file] = piece.end
            yield _labelled(piece, self._settings)

    def _pieces(self) -> Iterator[Piece]:
        settings = self._settings
        pause = SHORTEST_PAUSE
        while True:
            # Called before the files are read, so that output written in between is read in this round.
            ended = settings.ended()
            found = False
            for piece in self._round(ended):
                found = True
                yield piece
            if ended or not settings.follow:
                self._finished = ended
                return
            pause = SHORTEST_PAUSE if found else min(LONGEST_PAUSE, pause * 1.5)
            if settings.on_pause is not None:
                settings.on_pause(self.unfinished())
            time.sleep(pause)

    def _round(self, ended: bool) -> Iterator[Piece]:
        """Yields the content of the files that was not read yet."""
        settings = self._settings
        tail, self._tail = self._tail, None
        streams = list_streams(settings.directory, settings.node, settings.rank)
        newest = max((stream.attempt for stream, _ in streams), default=0)
        block = max(SMALLEST_BLOCK, min(LARGEST_BLOCK, MERGE_MEMORY // max(1, len(streams))))
        if tail is not None:
            # Many lines are held in memory, so each block must be small.
            block = min(block, LONG_PENDING)
        by_attempt: dict[int, list[Iterator[Piece]]] = {}
        for stream, size in streams:
            # An attempt has ended if there is a later one.
            final = ended or stream.attempt < newest
            reader = self._reader(stream)
            if tail is not None:
                reader.skip_to_tail(size, tail, complete_only=settings.follow and not final)
                self._position[stream.file] = reader.offset
            if size > reader.offset + len(reader.pending) or (reader.pending and final):
                pieces = reader.read(
                    size, block, final=final, provisional=not (final or settings.follow)
                )
                by_attempt.setdefault(stream.attempt, []).append(pieces)
        merged = chain.from_iterable(
            heapq.merge(*by_attempt[attempt], key=attrgetter("time"))
            for attempt in sorted(by_attempt)
        )
        return merged if tail is None else self._last(merged, tail)

    def _reader(self, stream: Stream) -> StreamReader:
        reader = self._readers.get(stream.file)
        if reader is None:
            start = self._position.get(stream.file, 0)
            reader = StreamReader(self._settings.directory, stream, start, self._settings.since)
            self._readers[stream.file] = reader
        return reader

    def _last(self, pieces: Iterator[Piece], wanted: int) -> Iterator[Piece]:
        """Yields the last `wanted` lines. The lines that are left out count as returned."""
        kept: deque[tuple[Piece, int]] = deque()
        total = 0
        for piece in pieces:
            kept.append((piece, piece.count()))
            total += kept[-1][1]
            while kept and total - kept[0][1] >= wanted:
                dropped, count = kept.popleft()
                total -= count
                self._position[dropped.stream.file] = dropped.end
        for piece, count in kept:
            excess = max(0, total - wanted)
            total -= min(excess, count)
            yield piece.without_first(excess) if excess else piece

    def unfinished(self) -> LogLine | None:
        """The last state of the unfinished line that changed most recently, such as a progress bar."""
        held = [reader for reader in self._readers.values() if reader.pending]
        newest = max(held, key=attrgetter("grown_at"), default=None)
        piece = newest.unfinished() if newest is not None else None
        if piece is None:
            return None
        texts = _texts(piece, self._settings.mask)
        return next(_lines(piece, iter(texts), self._settings), None)


def parse_since(value: float | str | datetime | timedelta | None) -> float | None:
    """A Unix time, from a Unix time, a datetime, a timedelta (ago), "90s", "5m", "2h", "1d", "10:30" or an ISO time."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, timedelta):
        return time.time() - value.total_seconds()
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if ago:
        return time.time() - float(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[ago[2]]
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M")
            today = datetime.now()
            at = datetime.combine(today.date(), clock.time())
            return (at if at <= today else at - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(
            f"since={value!r} is not a time: give 90s, 5m, 2h or 1d for a time ago, 10:30 for today, or a date "
            "and time such as 2025-01-31T10:30"
        ) from None


def _lines(piece: Piece, texts: Iterator[str], settings: _Settings) -> Iterator[LogLine]:
    """Returns the lines of a piece, given their texts. Each text is taken when its line is.

    Lines are made one by one. Thousands of them at a time would make the garbage collector run again and again, for a
    quarter of the time of all this.
    """
    stream = piece.stream
    kind = RankedLine if settings.label_ranks else LogLine
    fields = zip(
        repeat(stream.node),
        repeat(stream.rank),
        repeat(stream.kind),
        repeat(piece.time),
        texts,
        strict=False,
    )
    # `tuple.__new__` takes a third of the time of `kind(...)`.
    return map(tuple.__new__, repeat(kind), fields)


def _labelled(piece: Piece, settings: _Settings) -> str:
    stream, mask = piece.stream, settings.mask
    rank = stream.rank if settings.label_ranks else None
    prefix = f"{label(stream.node, piece.time, stream.kind, rank)} "
    if not mask and not piece.goes_on:
        return f"{prefix}{piece.joined(prefix)}\n"
    text = f"\n{prefix}".join(_texts(piece, mask))
    return f"{prefix}{text}\n"


def _texts(piece: Piece, mask: Mask) -> list[str]:
    texts = piece.texts()
    if mask:
        texts = mask.lines(texts, whole=piece.raw.endswith(b"\n"), inside=piece.inside)
    if piece.goes_on and texts:
        texts[-1] += GOES_ON
    return texts
