"""Shows the progress of a transfer in one row of the terminal. Shows nothing if standard error is not a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from flowlite.node.system.byte_sizes import human_size
from flowlite.output import printing

_EVERY = 0.1
_WIDTH = 24


class Transfer:
    """A progress bar. Use as a context manager.

    Args:
        what: What is transferred, in a few words.
        total: Size of the transfer in bytes.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._next = 0.0
        self._shows = printing.can_rewrite(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
