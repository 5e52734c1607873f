"""Quotes words and scripts so that they pass through any login shell.

sshd passes one string to the user's login shell, which may be sh, fish, csh or another. That string therefore only
starts `sh` and lets it evaluate the script, which is encoded in characters that no shell treats specially.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Bytes that any shell keeps unchanged between single quotes, and that `printf %b` does not interpret.
_SPECIAL = re.compile(rb"[^A-Za-z0-9 _./:=,;@%+\-(){}<>|&\"$\[\]*?#~^]")
_LONGEST_QUOTE = 400
_EVALUATE = b"""exec sh -c 'eval "$(printf %b "$1")"' sh '"""


def quote(word: str) -> bytes:
    """A word quoted for `sh`, for arbitrary bytes. Raises ValueError for a NUL, which no argument can have."""
    raw = word.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError(f"an argument holds a NUL character: {word[:80]!r}")
    return b"'" + raw.replace(b"'", b"'\\''") + b"'"


def command(argv: Sequence[str]) -> bytes:
    """A command quoted for `sh`."""
    if not argv:
        raise ValueError("the command is empty")
    return b" ".join(quote(word) for word in argv)


def encode(script: bytes) -> bytes:
    """A script encoded for `printf %b`, without any character that shells treat differently."""
    return _SPECIAL.sub(lambda found: b"\\0%03o" % found[0][0], script)


def login_line(script: bytes) -> bytes:
    """A line with which any login shell starts `sh` and has it evaluate the script."""
    return _EVALUATE + encode(script) + b"'"


def readable(said: bytes | str) -> str:
    """The end of a host's output as one line, safe to print on a terminal."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line)[-_LONGEST_QUOTE:]
