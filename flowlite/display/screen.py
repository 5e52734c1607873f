"""`Screen`: where several tasks are shown at a time, from several threads, without cutting each other's lines.

Whole lines are written one after the other. On a terminal the last row shows what is being written just now, such as a
progress bar; it is taken away before a line is written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from shutil import get_terminal_size
from typing import TextIO

from flowlite import terminal
from flowlite.output import printing
from flowlite.output.printing import Painted


class Screen:
    """One stream for lines of workers, and one for what flowlite itself says; they may be the same.

    The streams are asked for anew at each write, since programs and notebooks replace `sys.stderr`. A stream that was
    closed, or that a program without a console does not have, is not written to.
    """

    def __init__(self, lines: Callable[[], TextIO | None], notes: Callable[[], TextIO | None]):
        self._lines = lines
        self._notes = notes
        self._lock = threading.RLock()
        self._row = ""
        self._shown: set[object] = set()

    # Who is shown

    def add(self, shown: object) -> None:
        """Notes that something is shown here from now on."""
        with self._lock:
            self._shown.add(shown)

    def remove(self, shown: object) -> None:
        """Notes that it is shown no longer."""
        with self._lock:
            self._shown.discard(shown)
            self.clear_row()

    @property
    def crowded(self) -> bool:
        """Whether more than one thing is shown just now, so that lines have to say what they belong to."""
        with self._lock:
            return len(self._shown) > 1

    # Writing

    def tell(self, *parts: str | Painted) -> None:
        """Writes a line of flowlite's own."""
        with self._lock:
            self.clear_row()
            stream = _usable(self._notes())
            if stream is not None:
                self._flush_lines()
                printing.write(stream, *parts)
                stream.flush()

    def write_lines(self, block: str) -> None:
        """Writes whole lines of workers."""
        with self._lock:
            self.clear_row()
            stream = _usable(self._lines())
            if stream is not None:
                printing.write_lines(stream, block)
                if stream.isatty():
                    stream.flush()

    def flush(self) -> None:
        """Hands on what was written; called whenever there is nothing more to write for now."""
        with self._lock:
            self._flush_lines()

    # The last row

    @property
    def has_row(self) -> bool:
        """Whether there is a last row that can be written anew: on a terminal."""
        stream = _usable(self._lines())
        return stream is not None and stream.isatty()

    def show_row(self, text: str) -> None:
        """Shows a text in the last row, in place of what stands there; nothing away from a terminal."""
        with self._lock:
            if not self.has_row:
                return
            text = terminal.in_one_line(text)[: get_terminal_size().columns - 1]
            if text != self._row:
                self._rewrite(text)
                self._row = text

    def clear_row(self) -> None:
        """Takes the last row away."""
        with self._lock:
            if self._row:
                self._row = ""
                self._rewrite("")

    def _rewrite(self, text: str) -> None:
        stream = _usable(self._lines())
        if stream is not None:
            printing.rewrite(stream, text)
            stream.flush()

    def _flush_lines(self) -> None:
        stream = _usable(self._lines())
        if stream is not None:
            stream.flush()


def _usable(stream: TextIO | None) -> TextIO | None:
    return None if stream is None or stream.closed else stream


def terminal_screen() -> Screen:
    """The screen of a command: lines of workers on standard output, everything else on standard error."""
    return Screen(lambda: sys.stdout, lambda: sys.stderr)


def _program_screen() -> Screen:
    return Screen(lambda: sys.stderr, lambda: sys.stderr)


_of_program = _program_screen()


def program_screen() -> Screen:
    """The one screen of a program that uses flowlite: everything on standard error; standard output is its own."""
    return _of_program


def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _of_program
    _of_program = _program_screen()


os.register_at_fork(after_in_child=_after_fork)
