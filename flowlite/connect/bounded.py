"""What comes from a node, a host or a cloud, kept within bounds: nobody but us decides how much memory it takes here.

An answer is a command's output, or a document in it. An answer that is longer than any honest one is given up: it
raises `AnswerTooLong`, which says what was asked. What is large on purpose (logs, results) is streamed to a file and
never held.
"""

from __future__ import annotations

import json
from typing import Any

from flowlite.errors import AnswerTooLong

MOST_OUTPUT = 16 << 20
"""Bytes of one command's output, both streams together."""

MOST_JSON = 2 << 20
"""Bytes of a JSON document; what is made from it takes up to 30 times as much memory."""

MOST_SAID = 64 << 10
"""Bytes that are kept of what only explains a failure."""


class Output:
    """The output of a command as it comes, whole or not at all."""

    def __init__(self, whose: str, most: int = MOST_OUTPUT) -> None:
        """
        Args:
            whose: What was asked of whom, for the error: "host n3: the output of cat".
            most: How many bytes it may have.
        """
        self._whose = whose
        self._most = most
        self._size = 0
        self._parts: dict[str, list[bytes]] = {"out": [], "err": []}

    def add(self, stream: str, block: bytes) -> None:
        """Takes a block of "out" or "err"; of any other stream there is none. Raises AnswerTooLong."""
        self._size += len(block)
        if self._size > self._most:
            self._parts.clear()
            raise too_long(self._whose, self._most)
        if stream in self._parts:
            self._parts[stream].append(block)

    def take(self, stream: str) -> bytes:
        """All of one stream; it is not kept here any more."""
        parts, self._parts[stream] = self._parts[stream], []
        return b"".join(parts)


class Tail:
    """The end of what was said, where it only explains a failure."""

    def __init__(self, whose: str) -> None:
        """
        Args:
            whose: As for `Output`.
        """
        self._whose = whose
        self._size = 0
        self._said = b""

    def add(self, block: bytes) -> None:
        """What was said next. Raises AnswerTooLong: it is not kept, but would take for ever to hear."""
        self._size += len(block)
        if self._size > MOST_OUTPUT:
            raise too_long(self._whose, MOST_OUTPUT)
        self._said = (self._said + block)[-MOST_SAID:]

    def clear(self) -> None:
        """Forgets it."""
        self._said = b""

    def __bytes__(self) -> bytes:
        return self._said


def too_long(whose: str, most: int) -> AnswerTooLong:
    """The error for an answer that was given up."""
    return AnswerTooLong(
        f"{whose} is longer than {most / (1 << 20):g} MiB, and was given up; a command with so much to say has to "
        "write to a file there, or be followed as it goes on (flow ssh --command)"
    )


def last_line(text: bytes) -> bytes:
    """The last line of an output that says anything: a login script may have greeted before it."""
    return text.rstrip().rpartition(b"\n")[2]


def parse_json(text: bytes | str) -> Any:
    """A JSON document that somebody else made. Raises ValueError where it is none, too long, or nested too deeply."""
    if len(text) > MOST_JSON:
        raise ValueError(f"a document of {len(text):,} bytes, where {MOST_JSON:,} are the most")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("a document that is nested too deeply") from None


def parse_object(text: bytes | str) -> dict[str, Any]:
    """As `parse_json`, for a document that has to be an object."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("a document that is no object")
    return found
