"""Prints everything that flowlite prints, so that text from nodes, hosts and clouds cannot act on the terminal.

Only `write`, `write_lines` and `rewrite` write to standard output and standard error. They remove characters that a
terminal would act on, and the values of secrets (`redact.py`). flowlite's own colours are `ColouredText`, which
distinguishes them from colours that are part of a text.
"""

from __future__ import annotations

import os
from typing import TextIO

from flowlite.node.quick_dataclass import dataclass
from flowlite.output import redact
from flowlite.terminal import in_one_line, plain

RED, YELLOW, DIM = "\x1b[31m", "\x1b[33m", "\x1b[2m"
_RESET = "\x1b[0m"
_CLEAR_ROW = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class ColouredText:
    """A part of a line that is coloured by flowlite, if the stream is a terminal that shows colours."""

    text: str
    colour: str


def write(stream: TextIO, *parts: str | ColouredText) -> None:
    """Writes a text and a newline, without characters that a terminal would act on and without secret values."""
    shown = "".join(_shown(part, stream) for part in parts)
    _emit(stream, f"{shown}\n")


def write_lines(stream: TextIO, block: str) -> None:
    """Writes whole lines that were cleaned by `clean_line`, with their colours."""
    if "\x1b" in block and is_terminal(stream):
        # A colour that a line does not reset must not affect the next label.
        block = "".join(
            f"{line}{_RESET}\n" if "\x1b" in line else f"{line}\n"
            for line in block.split("\n")[:-1]
        )
    _emit(stream, block)


def rewrite(stream: TextIO, text: str) -> None:
    """Replaces the terminal's last row by a text; an empty text clears it."""
    _emit(stream, f"{_CLEAR_ROW}{in_one_line(text)}")


def flush(stream: TextIO) -> None:
    """Flushes the stream, if it can be."""
    # What programs put in the place of `sys.stderr` often has no more than `write`.
    if hasattr(stream, "flush"):
        stream.flush()


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal."""
    return hasattr(stream, "isatty") and stream.isatty()


def can_rewrite(stream: TextIO) -> bool:
    """Whether what was written can be replaced: not on a terminal that only shows characters, such as Emacs's shell."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def colourful(stream: TextIO) -> bool:
    """Whether the stream shows colours."""
    return can_rewrite(stream) and "NO_COLOR" not in os.environ


def _shown(part: str | ColouredText, stream: TextIO) -> str:
    if isinstance(part, str):
        return plain(redact.cleaned(part))
    text = plain(redact.cleaned(part.text))
    return f"{part.colour}{text}{_RESET}" if colourful(stream) else text


def _emit(stream: TextIO, text: str) -> None:
    # A lone surrogate, or a terminal without UTF-8, must not make the command fail.
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))
