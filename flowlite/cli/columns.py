"""Fits tables to the width of a terminal: one line for each row, with a mark where a text was cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from flowlite.node.quick_dataclass import dataclass

ELLIPSIS = "…"
GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its heading.
        least: The smallest width to which its texts may be cut; None if they are never cut.
        leave_out: If the terminal is too narrow, columns with the highest number are left out first; 0 is always shown.
    """

    name: str
    least: int | None = None
    leave_out: int = 0


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that fits a width.

    Attributes:
        columns: The names of the columns that are shown.
        rows: Their texts, cut to the widths of their columns.
        left_out: The names of the columns that have values but are not shown for lack of space.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> FittedTable:
    """Fits a table to a width. Drops columns without a value, then the least important ones, then cuts texts.

    Args:
        columns: All columns.
        rows: One text for each column, without line breaks; "" for no value.
        width: Width of the terminal in cells.
    """
    texts = {column.name: [row[i] for row in rows] for i, column in enumerate(columns)}
    shown = [column for column in columns if any(texts[column.name])]
    natural = {
        column.name: max(cell_len(text) for text in (column.name, *texts[column.name]))
        for column in shown
    }
    left_out: list[str] = []
    while _least_width(shown, natural) > width:
        dispensable = [column for column in shown if column.leave_out]
        if not dispensable:
            break
        first = max(dispensable, key=lambda column: column.leave_out)
        shown.remove(first)
        left_out.append(first.name)
    widths = _widths(shown, natural, width)
    names = tuple(column.name for column in shown)
    cut_rows = tuple(
        tuple(cut(texts[name][i], widths[name]) for name in names) for i in range(len(rows))
    )
    order = [column.name for column in columns]
    return FittedTable(names, cut_rows, tuple(sorted(left_out, key=order.index)))


def cut(text: str, width: int) -> str:
    """Cuts a text to a width in cells and marks it with `…`. Cuts between words if one ends in the second half."""
    if cell_len(text[: 4 * width]) <= width and len(text) <= 4 * width:
        return text
    kept, cells = 0, 0
    for character in text:
        cells += cell_len(character)
        if cells > width - 1:
            break
        kept += 1
    # The search includes the character after the cut, since it may be the end of a word.
    space = text.rfind(" ", 0, kept + 1)
    if space >= kept // 2:
        kept = space
    return f"{text[:kept].rstrip(' ;,:')}{ELLIPSIS}"


def _least_width(columns: Sequence[Column], natural: dict[str, int]) -> int:
    least = (
        natural[column.name]
        if column.least is None
        else min(natural[column.name], max(column.least, len(column.name)))
        for column in columns
    )
    return sum(least) + GAP * (len(columns) - 1)


def _widths(columns: Sequence[Column], natural: dict[str, int], width: int) -> dict[str, int]:
    """The width of each column. Columns that may be cut share the remaining width, the first of them first."""
    found = {
        column.name: natural[column.name]
        if column.least is None
        else min(natural[column.name], max(column.least, len(column.name)))
        for column in columns
    }
    room = width - sum(found.values()) - GAP * (len(columns) - 1)
    for column in columns:
        more = min(max(0, room), natural[column.name] - found[column.name])
        found[column.name] += more
        room -= more
    if room < 0:
        # Even the remaining columns are too wide: the last ones that may be cut shrink; then the table overflows.
        for column in reversed(columns):
            if column.least is not None:
                less = min(-room, found[column.name] - 1)
                found[column.name] -= less
                room += less
    return found
