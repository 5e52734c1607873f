"""Parses what a courier answers (`node/helper/courier.py`)."""

from __future__ import annotations

from typing import Any

from flowlite.connect.bounded import MOST_JSON, parse_object
from flowlite.errors import NodeUnreachable
from flowlite.node.helper.courier import LARGEST_CONTENT

Answer = tuple[dict[str, Any], bytes]
"""The head of an answer, and the content that follows it."""


class CourierAnswer:
    """Parses an answer: a line of JSON, followed by as many bytes as the line says."""

    def __init__(self, where: str) -> None:
        """
        Args:
            where: Where the courier is, for errors: "host n3".
        """
        self._where = where
        self._came = bytearray()
        self._head: dict[str, Any] | None = None
        self._size = 0

    def take(self, block: bytes) -> Answer | None:
        """Returns the answer once it is complete. Raises NodeUnreachable if it is invalid."""
        self._came += block
        if self._head is None:
            self._read_head()
        if len(self._came) > self._size + (MOST_JSON if self._head is None else 0):
            raise self._no_answer(f"{len(self._came):,} bytes where {self._size:,} were to come")
        if self._head is None or len(self._came) < self._size:
            return None
        return self._head, bytes(self._came)

    def _read_head(self) -> None:
        end = self._came.find(b"\n")
        if end < 0:
            return
        try:
            self._head = parse_object(bytes(self._came[:end]))
            self._size = int(self._head["size"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._no_answer(f"{type(error).__name__}: {error}") from None
        if not 0 <= self._size <= LARGEST_CONTENT:
            raise self._no_answer(f"{self._size:,} bytes, where {LARGEST_CONTENT:,} are the most")
        del self._came[: end + 1]

    def _no_answer(self, why: str) -> NodeUnreachable:
        return NodeUnreachable(f"{self._where}: our program there answers nonsense ({why})")
