"""`Screen`: shows several tasks at a time, from several threads, without mixing their lines.

Lines are written whole, one after the other. On a terminal, the last row shows an unfinished line, such as a progress
bar; it is removed before a line is written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TextIO

from flowlite import terminal
from flowlite.output import printing
from flowlite.output.printing import ColouredText


class Screen:
    """One stream for workers' lines, and one for flowlite's own messages; they may be the same.

    The streams are looked up at each write, since programs and notebooks replace `sys.stderr`. A stream that is closed,
    or that does not exist in a program without a console, is not written to.

    Args:
        lines: Returns the stream of the workers' lines.
        notes: Returns the stream of flowlite's own messages.
        dispensable: Whether nothing is shown any more once a stream cannot be written; else its exception is raised.
    """

    def __init__(
        self,
        lines: Callable[[], TextIO | None],
        notes: Callable[[], TextIO | None],
        *,
        dispensable: bool = False,
    ) -> None:
        self._lines = lines
        self._notes = notes
        self._dispensable = dispensable
        self._failed = False
        self._lock = threading.RLock()
        self._row = ""
        self._shown: set[object] = set()

    # Registered displays

    def add(self, shown: object) -> None:
        """Registers something that is shown here from now on."""
        with self._lock:
            self._shown.add(shown)

    def remove(self, shown: object) -> None:
        """Unregisters something that is no longer shown here."""
        with self._lock:
            self._shown.discard(shown)
            self.clear_row()

    @property
    def crowded(self) -> bool:
        """Whether several tasks are shown at the moment, so that lines need a label."""
        with self._lock:
            return len(self._shown) > 1

    # Writing

    def tell(self, *parts: str | ColouredText) -> None:
        """Writes a message of flowlite's own, as a line."""
        with self._lock, self._writing():
            self.clear_row()
            stream = self._usable(self._notes())
            if stream is not None:
                self._flush_lines()
                printing.write(stream, *parts)
                printing.flush(stream)

    def write_lines(self, block: str) -> None:
        """Writes whole lines of workers."""
        with self._lock, self._writing():
            self.clear_row()
            stream = self._usable(self._lines())
            if stream is not None:
                printing.write_lines(stream, block)
                if printing.is_terminal(stream):
                    printing.flush(stream)

    def flush(self) -> None:
        """Flushes both streams; called whenever there is nothing more to write for now."""
        with self._lock, self._writing():
            self._flush_lines()

    # The last row

    @property
    def has_row(self) -> bool:
        """Whether there is a last row that can be rewritten, as on a terminal."""
        stream = self._usable(self._lines())
        return stream is not None and printing.can_rewrite(stream)

    def show_row(self, text: str) -> None:
        """Replaces the text of the last row. Does nothing if there is no terminal."""
        with self._lock:
            if not self.has_row:
                return
            text = terminal.in_one_line(text)[: get_terminal_size().columns - 1]
            if text != self._row:
                self._rewrite(text)
                self._row = text

    def clear_row(self) -> None:
        """Removes the last row."""
        with self._lock:
            if self._row:
                self._row = ""
                self._rewrite("")

    def _rewrite(self, text: str) -> None:
        with self._writing():
            stream = self._usable(self._lines())
            if stream is not None:
                printing.rewrite(stream, text)
                printing.flush(stream)

    def _flush_lines(self) -> None:
        stream = self._usable(self._lines())
        if stream is not None:
            printing.flush(stream)

    def _usable(self, stream: TextIO | None) -> TextIO | None:
        gone = self._failed or stream is None or getattr(stream, "closed", False)
        return None if gone else stream

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # What a program has put in the place of its standard error may raise anything.
            if not self._dispensable:
                raise
            self._failed = True


def terminal_screen() -> Screen:
    """The screen of a command: workers' lines on standard output, everything else on standard error."""
    return Screen(lambda: sys.stdout, lambda: sys.stderr)


def _program_screen() -> Screen:
    # A broken stream must not cost the program its result.
    return Screen(lambda: sys.stderr, lambda: sys.stderr, dispensable=True)


_of_program = _program_screen()


def program_screen() -> Screen:
    """The only screen of a program that uses flowlite. Everything is on standard error; stdout is the program's own."""
    return _of_program


def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _of_program
    _of_program = _program_screen()


os.register_at_fork(after_in_child=_after_fork)
