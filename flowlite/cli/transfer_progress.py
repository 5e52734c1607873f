"""Shows the progress of a transfer in one row of the terminal, and its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self

from flowlite.cli import output
from flowlite.node.system.byte_sizes import human_size
from flowlite.output import printing

_EVERY = 0.1
_WIDTH = 24


class Transfer:
    """A progress bar for so many bytes, if standard error is a terminal. Use as a context manager."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._next = 0.0
        self._shows = printing.can_rewrite(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shows:
            printing.rewrite(sys.stderr, "")
            sys.stderr.flush()

    def moved(self, count: int) -> None:
        """Adds a number of transferred bytes."""
        self._done += count
        now = time.monotonic()
        if self._shows and now >= self._next:
            self._next = now + _EVERY
            printing.rewrite(sys.stderr, self.row(now - self._began))
            sys.stderr.flush()

    def row(self, seconds: float) -> str:
        """The row, such as `train: [######------] 50%  1.2 GB of 2.4 GB  100 MB/s`."""
        part = min(1.0, self._done / self._total) if self._total else 1.0
        bar = "#" * int(part * _WIDTH)
        rate = human_size(self._done / seconds) if seconds > 0 else "0 B"
        return (
            f"{self._what}: [{bar.ljust(_WIDTH, '-')}] {part:.0%}  {human_size(self._done)} of "
            f"{human_size(self._total)}  {rate}/s"
        )


def files(count: int) -> str:
    """A number of files as text."""
    return "1 file" if count == 1 else f"{count:,} files"


def tell_copied(
    place: str,
    count: int,
    size: int,
    *,
    json: bool,
    taken: Sequence[str] = (),
    below: str = "",
    kind: str = "copied",
) -> None:
    """Says how much was copied. Raises Quit for `taken`, which was not: other files have those names in `below`."""
    if json:
        output.print_json(kind, {"to": place, "files": count, "bytes": size, "taken": [*taken]})
    elif count or not taken:
        output.tell(f"{files(count)} ({human_size(size)}) in {place}")
    if taken:
        raise output.not_overwritten(taken, below)
