"""Words and scripts on their way through shells that we have not chosen.

sshd hands one text to the user's login shell: sh, fish, csh, whatever it is. So that text says nothing but "start `sh`
and let it evaluate this", with the script in letters that all shells leave alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Bytes that stay as they are between single quotes in any shell, and that `printf %b` leaves alone.
_SPECIAL = re.compile(rb"[^A-Za-z0-9 _./:=,;@%+\-(){}<>|&\"$\[\]*?#~^]")
_LONGEST_QUOTE = 400
_EVALUATE = b"""exec sh -c 'eval "$(printf %b "$1")"' sh '"""


def quote(word: str) -> bytes:
    """A word as `sh` reads it back, whatever bytes it has. Raises ValueError for a NUL, which no argument can have."""
    raw = word.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError(f"an argument holds a NUL character: {word[:80]!r}")
    return b"'" + raw.replace(b"'", b"'\\''") + b"'"


def command(argv: Sequence[str]) -> bytes:
    """A command as `sh` reads it back."""
    if not argv:
        raise ValueError("the command is empty")
    return b" ".join(quote(word) for word in argv)


def encode(script: bytes) -> bytes:
    """A script as `printf %b` gives it back, without a character that any shell treats in its own way."""
    return _SPECIAL.sub(lambda found: b"\\0%03o" % found[0][0], script)


def login_line(script: bytes) -> bytes:
    """What any login shell turns into `sh` with this script."""
    return _EVALUATE + encode(script) + b"'"


def readable(said: bytes | str) -> str:
    """The end of what a host said, as one line that does nothing to a terminal."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line)[-_LONGEST_QUOTE:]
