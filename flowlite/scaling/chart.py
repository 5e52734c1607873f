"""Draws a scaling ladder as text: a bar for each rung, with a line at the efficiency that counts as good."""

from __future__ import annotations

from collections.abc import Sequence

from flowlite.scaling.ladder import GOOD, Rung

_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"


def number(value: float) -> str:
    """A number with four significant digits, without an exponent if possible: `0.1234`, `98.77`, `12,350`."""
    # As rounded, since 999.96 has four digits before the point then.
    rounded = float(f"{value:.4g}")
    if rounded >= 1000:
        return f"{rounded:,.0f}"
    if value < 1e-4:
        return f"{value:.3e}"
    return f"{value:#.4g}"


def chart(rungs: Sequence[Rung], metric: str, *, width: int = 80, plain: bool = False) -> str:
    """Throughput and efficiency of each rung as bars, or "" if nothing was measured.

    Args:
        width: Columns that may be used.
        plain: Use only ASCII, for terminals that show nothing else.
    """
    measured = [rung for rung in rungs if rung.throughput is not None]
    if not measured:
        return ""
    names = [_name(rung.nodes) for rung in rungs]
    left = max(map(len, names))
    room = max(10, min(60, width - left - 14))
    highest = max(rung.throughput or 0.0 for rung in measured)
    lines = [metric]
    for name, rung in zip(names, rungs, strict=True):
        if rung.throughput is None:
            lines.append(f"  {name.rjust(left)}  failed")
            continue
        bar = _bar(rung.throughput / highest, room, plain)
        lines.append(f"  {name.rjust(left)}  {bar.ljust(room)}  {number(rung.throughput)}")
    largest = max(1.0, *(rung.efficiency or 0.0 for rung in measured))
    mark = round(GOOD / largest * room)
    lines += ["", f"efficiency, {'|' if plain else '│'} is {GOOD}"]
    for name, rung in zip(names, rungs, strict=True):
        if rung.efficiency is None:
            lines.append(f"  {name.rjust(left)}  failed")
            continue
        bar = _bar(rung.efficiency / largest, room, plain)
        lines.append(
            f"  {name.rjust(left)}  {_marked(bar, mark, room, plain)}  {rung.efficiency:.2f}"
        )
    return "\n".join(lines)


def _name(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _bar(share: float, room: int, plain: bool) -> str:
    if plain:
        return "#" * max(1, round(share * room))
    eighths = max(1, round(share * room * 8))
    part = _EIGHTHS[eighths % 8].strip()
    return _FULL * (eighths // 8) + part


def _marked(bar: str, mark: int, room: int, plain: bool) -> str:
    """The bar with the efficiency line in it, or behind it if the bar is shorter."""
    cells = list(bar.ljust(room + 1))
    cells[mark] = "|" if plain else "│"
    return "".join(cells)
