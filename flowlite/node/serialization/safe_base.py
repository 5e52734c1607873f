"""What the parts of the plain form share: its errors, the names of types, the writing of lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Writer(Protocol):
        """What writes a value, as far as the parts for single kinds of values need it."""

        out: bytearray
        tensors: Any

        def remember(self, value: Any) -> None:
            """Gives the value the next number."""

        def text(self, tag: bytes, text: str) -> None:
            """Writes a tag and a string."""

        def block(self, data: Any) -> None:
            """Writes bytes, beside the structure where they are many."""

    class Reader(Protocol):
        """What reads a value, as far as the parts for single kinds of values need it."""

        tensors: list[Any]
        buffers: Sequence[memoryview]

        def remember(self, value: Any) -> Any:
            """Gives the value the next number, and returns it."""

        def size(self) -> int:
            """Reads a non-negative integer."""

        def text(self) -> str:
            """Reads a string."""

        def block(self) -> memoryview:
            """Reads bytes."""


# Bytes from which on a block is a view beside the structure, not a copy in it.
OUT_OF_LINE = 4096


class NotPlain(Exception):
    """The value holds something the plain form has no place for.

    Attributes:
        place: Where in the value, such as "['model'][0]"; empty for the value itself.
        type_name: What was found there.
        why: A reason beyond the type, if there is one.
    """

    def __init__(self, type_name: str, why: str = "") -> None:
        super().__init__(type_name, why)
        self.place = ""
        self.type_name = type_name
        self.why = why

    def inside(self, step: str) -> None:
        """Note one more step on the way from the value to the place."""
        self.place = step + self.place

    def __str__(self) -> str:
        reason = f" ({self.why})" if self.why else ""
        return f"{self.place or 'it'} is of type {self.type_name}{reason}"


class PlainError(Exception):
    """The data is damaged, or needs a package that is not installed here."""


def type_name(value: Any) -> str:
    """Qualified name of the value's type, without "builtins."."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def write_size(out: bytearray, number: int) -> None:
    """Append a non-negative integer."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
