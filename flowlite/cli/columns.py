"""Fits tables to the width of a terminal: one line for each row, with a mark where a text was cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len

from flowlite.node.quick_dataclass import dataclass

ELLIPSIS = "…"
GAP = 2


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that fits a width: the names of its columns, their cut texts, and the columns that had no room."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]


def fit(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    least: Mapping[str, int],
    leave_out: Mapping[str, int],
) -> FittedTable:
    """Fits a table to a width. Drops columns without a value, then the least important ones, then cuts texts.

    Args:
        names: The headings of all columns.
        rows: One text for each column, without line breaks; "" for no value.
        width: Width of the terminal in cells.
        least: The smallest widths to which the texts of columns may be cut; others are never cut.
        leave_out: If the terminal is too narrow, columns with the highest number are left out first; others never are.
    """
    texts = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    shown = [name for name in names if any(texts[name])]
    natural = {name: max(map(cell_len, (name, *texts[name]))) for name in shown}
    smallest = {
        name: min(natural[name], max(least.get(name, natural[name]), len(name))) for name in shown
    }
    left_out: list[str] = []
    while _whole_width(map(smallest.__getitem__, shown)) > width:
        dispensable = [name for name in shown if name in leave_out]
        if not dispensable:
            break
        left_out.append(max(dispensable, key=leave_out.__getitem__))
        shown.remove(left_out[-1])
    widths = {name: smallest[name] for name in shown}
    room = width - _whole_width(widths.values())
    # Columns that may be cut share the remaining width, the first of them first.
    for name in shown:
        more = min(max(0, room), natural[name] - widths[name])
        widths[name] += more
        room -= more
    # If even these are too wide, the last ones that may be cut shrink; then the table overflows.
    for name in reversed(shown):
        if room < 0 and name in least:
            less = min(-room, widths[name] - 1)
            widths[name] -= less
            room += less
    cut_rows = tuple(
        tuple(cut(texts[name][i], widths[name]) for name in shown) for i in range(len(rows))
    )
    return FittedTable(tuple(shown), cut_rows, tuple(sorted(left_out, key=names.index)))


def _whole_width(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + GAP * (len(listed) - 1)


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
