"""Bounds on what nodes, hosts and clouds send, so that none of them decides how much memory or time is used here.

An answer is a command's output, or a document in it. An answer that exceeds its bound raises `AnswerTooLong`, which
says what was asked. Logs and results are streamed to files and never held in memory.
"""

from __future__ import annotations

import json
from typing import Any

from flowlite.errors import AnswerTooLong, NodeUnreachable

MOST_OUTPUT = 4 << 20
"""Maximum bytes of one command's output, both streams together. Several commands run at a time, on many nodes."""

MOST_JSON = 2 << 20
"""Maximum bytes of a JSON document; the parsed objects take up to 30 times as much memory."""

MOST_SAID = 64 << 10
"""Bytes that are kept of output that only explains a failure."""

HASHED_PER_SECOND = 20e6
"""Bytes per second that the slowest machine hashes; one that takes longer counts as hung."""


class Output:
    """The collected output of a command, with a limit on its size."""

    def __init__(self, whose: str, most: int = MOST_OUTPUT) -> None:
        """
        Args:
            whose: What was asked of which node, for the error: "host n3: the output of cat".
            most: Maximum number of bytes.
        """
        self._whose = whose
        self._most = most
        self._size = 0
        self._parts: dict[str, list[bytes]] = {"out": [], "err": []}

    def add(self, stream: str, block: bytes) -> None:
        """Adds a block of "out" or "err"; blocks of other streams are counted and dropped. Raises AnswerTooLong."""
        self._size += len(block)
        if self._size > self._most:
            self._parts.clear()
            raise too_long(self._whose, self._most)
        if stream in self._parts:
            self._parts[stream].append(block)

    def take(self, stream: str) -> bytes:
        """Returns all of one stream and drops it from the buffer."""
        parts, self._parts[stream] = self._parts[stream], []
        return b"".join(parts)


class Tail:
    """The end of some output, for errors that quote it."""

    def __init__(self, whose: str) -> None:
        """
        Args:
            whose: As for `Output`.
        """
        self._whose = whose
        self._size = 0
        self._said = b""

    def add(self, block: bytes) -> None:
        """Adds a block, keeping only the end of the output. Raises AnswerTooLong after `MOST_OUTPUT` bytes."""
        self._size += len(block)
        if self._size > MOST_OUTPUT:
            raise too_long(self._whose, MOST_OUTPUT)
        self._said = (self._said + block)[-MOST_SAID:]

    def clear(self) -> None:
        """Drops what was kept."""
        self._said = b""

    def __bytes__(self) -> bytes:
        return self._said


def too_long(whose: str, most: int) -> AnswerTooLong:
    """The error for an answer that exceeds its bound."""
    return AnswerTooLong(
        f"{whose} is longer than {most / (1 << 20):g} MiB, and was given up; a command with so much to say has to "
        "write to a file there, or be followed as it goes on (flow ssh --command)"
    )


def process_id(said: object, what: str) -> int:
    """The id of a process that was started on a node. Raises NodeUnreachable if the node says none.

    Args:
        what: What the node answers to, for the error.
    """
    text = str(said).strip()
    if len(text) > 10 or not text.isascii() or not text.isdecimal() or not int(text):
        raise NodeUnreachable(f"{what}: the answer is no process id: {text[:80]!r}")
    return int(text)


def last_line(text: bytes) -> bytes:
    """The last line of an output that is not empty. Login scripts may print a greeting before it."""
    return text.rstrip().rpartition(b"\n")[2]


def parse_json(text: bytes | str, most: int = MOST_JSON) -> Any:
    """Parses an untrusted JSON document. Raises ValueError if it is invalid, too long or nested too deeply."""
    if len(text) > most:
        raise ValueError(f"a document of {len(text):,} bytes, where {most:,} are the most")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("a document that is nested too deeply") from None


def parse_object(text: bytes | str) -> dict[str, Any]:
    """Like `parse_json`, for a document that has to be an object."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("a document that is no object")
    return found
