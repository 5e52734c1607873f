"""Everything that flowlite prints: what comes from a node, a host or a cloud is only data to the terminal, too.

`write`, `write_lines` and `rewrite` are the only ways to standard output and standard error. Texts lose what a terminal
acts on, and the values that are kept out (`redact.py`). Our own colours are `Painted`, which tells them from colours
that are part of a text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

from flowlite.output import redact
from flowlite.terminal import in_one_line, plain

RED, YELLOW, DIM = "\x1b[31m", "\x1b[33m", "\x1b[2m"
_RESET = "\x1b[0m"
_CLEAR_ROW = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class Painted:
    """A part of a line in a colour of ours, where the stream is a terminal that shows colours."""

    text: str
    colour: str


def write(stream: TextIO, *parts: str | Painted) -> None:
    """Writes a text and a newline: without what a terminal acts on, and without the values that are kept out."""
    shown = "".join(_shown(part, stream) for part in parts)
    _emit(stream, f"{shown}\n")


def write_lines(stream: TextIO, block: str) -> None:
    """Writes whole lines that `clean_line` has made, with their colours."""
    if "\x1b" in block and stream.isatty():
        # A colour that a line leaves switched on must not run into the next label.
        block = "".join(
            f"{line}{_RESET}\n" if "\x1b" in line else f"{line}\n"
            for line in block.split("\n")[:-1]
        )
    _emit(stream, block)


def rewrite(stream: TextIO, text: str) -> None:
    """Shows a text in place of the terminal's last row; an empty one clears that."""
    _emit(stream, f"{_CLEAR_ROW}{in_one_line(text)}")


def colourful(stream: TextIO) -> bool:
    """Whether colours are welcome there."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _shown(part: str | Painted, stream: TextIO) -> str:
    if isinstance(part, str):
        return plain(redact.cleaned(part))
    text = plain(redact.cleaned(part.text))
    return f"{part.colour}{text}{_RESET}" if colourful(stream) else text


def _emit(stream: TextIO, text: str) -> None:
    # A lone surrogate or a terminal that knows no UTF-8 must not end the command.
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))
