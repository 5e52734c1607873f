"""Definitions shared by the modules of the plain form: errors, type names, and raw memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .envelope import MOST_PARTS

# From this size on, a block is a view of the value's own memory rather than a copy.
OUT_OF_LINE = 4096


class NotPlain(Exception):
    """The value contains something that the plain form does not support.

    Attributes:
        place: Where in the value, such as "['model'][0]"; empty for the value itself.
        type_name: The type found there.
        why: A reason beyond the type, if there is one.
    """

    def __init__(self, type_name: str, why: str = "") -> None:
        super().__init__(type_name, why)
        self.place = ""
        self.type_name = type_name
        self.why = why

    def inside(self, step: str) -> None:
        """Prepends one more step to the place."""
        self.place = step + self.place

    def __str__(self) -> str:
        reason = f" ({self.why})" if self.why else ""
        return f"{self.place or 'it'} is of type {self.type_name}{reason}"


class PlainError(Exception):
    """The data is damaged, or needs a package that is not installed here."""


def type_name(value: Any) -> str:
    """Returns the qualified name of the value's type, without "builtins."."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


class BlockWriter:
    """The raw memory beside the JSON document: large blocks as views, the others joined in the last buffer.

    Beyond `MOST_PARTS` of them, large blocks are joined, too. A block is named in the document by the number of its
    buffer, or by offset and length in the joined one.
    """

    def __init__(self) -> None:
        self._large: list[memoryview] = []
        self._small = bytearray()

    def add(self, data: Any) -> int | list[int]:
        """Adds bytes and returns their name."""
        view = memoryview(data).cast("B")
        if len(view) >= OUT_OF_LINE and len(self._large) < MOST_PARTS:
            self._large.append(view)
            return len(self._large) - 1
        self._small += view
        return [len(self._small) - len(view), len(view)]

    def buffers(self) -> list[memoryview]:
        """Returns all memory: the large blocks, then the joined one if there is any."""
        return [*self._large, memoryview(self._small)] if self._small else self._large


class BlockReader:
    """Finds the blocks that a `BlockWriter` named."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers

    def get(self, name: int | list[int]) -> memoryview:
        """Returns a block: a view of a buffer, or a copy of a part of the joined one."""
        if isinstance(name, int):
            if not 0 <= name < len(self._buffers):
                raise PlainError("a block of bytes is missing")
            return memoryview(self._buffers[name]).cast("B")
        offset, length = name
        if not length:
            return memoryview(b"")
        joined = memoryview(self._buffers[-1]).cast("B")
        if offset < 0 or length < 0 or offset + length > len(joined):
            raise PlainError("the data is cut off")
        return memoryview(bytes(joined[offset : offset + length]))
