"""The interface that displays write to: the streams of a program (`Screen`) or one output of a notebook's cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flowlite.output.printing import ColouredText


class Surface(Protocol):
    """Shows whole lines, and a last row that is rewritten."""

    def add(self, shown: object) -> None:
        """Registers something that is shown here from now on."""

    def remove(self, shown: object) -> None:
        """Unregisters something that is no longer shown here."""

    @property
    def crowded(self) -> bool:
        """Whether several tasks are shown at the moment, so that lines need a label."""

    def tell(self, *parts: str | ColouredText) -> None:
        """Writes a message of flowlite's own, as a line."""

    def write_lines(self, block: str) -> None:
        """Writes whole lines of workers."""

    def flush(self) -> None:
        """Called whenever there is nothing more to write for now."""

    @property
    def has_row(self) -> bool:
        """Whether there is a last row that can be rewritten."""

    def show_row(self, text: str) -> None:
        """Replaces the text of the last row."""

    def clear_row(self) -> None:
        """Removes the last row."""
