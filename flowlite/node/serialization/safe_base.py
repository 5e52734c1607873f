"""Definitions shared by the modules of the plain form: errors, type names, and the encoding of lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Writer(Protocol):
        """The part of the encoder that the modules for single kinds of values use."""

        out: bytearray
        tensors: Any

        def remember(self, value: Any) -> None:
            """Assigns the value the next number."""

        def text(self, tag: bytes, text: str) -> None:
            """Writes a tag and a string."""

        def block(self, data: Any) -> None:
            """Writes bytes, outside of the structure if there are many."""

    class Reader(Protocol):
        """The part of the decoder that the modules for single kinds of values use."""

        tensors: list[Any]
        buffers: Sequence[memoryview]

        def remember(self, value: Any) -> Any:
            """Assigns the value the next number, and returns it."""

        def size(self) -> int:
            """Reads a non-negative integer."""

        def text(self) -> str:
            """Reads a string."""

        def block(self) -> memoryview:
            """Reads bytes."""


# From this size on, a block is a view outside of the structure rather than a copy in it.
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


def write_size(out: bytearray, number: int) -> None:
    """Appends a non-negative integer."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
