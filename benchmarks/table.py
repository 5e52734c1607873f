"""The table of results: one row for each figure, printed here and written into docs/performance.md."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
HEADINGS = ("what", "flowlite", "beside", "ratio", "to reach", "reached")


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        what: What was measured.
        flowlite: Our figure, with its unit.
        beside: The peer and its figure.
        ratio: Ours divided by the peer's; None without a peer.
        to_reach: The bound, in words; "" where the figure is only reported.
        reached: Whether the bound holds; None where there is none.
    """

    what: str
    flowlite: str
    beside: str = ""
    ratio: float | None = None
    to_reach: str = ""
    reached: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        reached = {True: "yes", False: "NO", None: ""}[self.reached]
        return self.what, self.flowlite, self.beside, ratio, self.to_reach, reached


def seconds(value: float) -> str:
    """A time with a fitting unit."""
    return f"{value * 1000:.0f} ms" if value < 0.1 else f"{value:.2f} s"


def show(rows: Sequence[Row]) -> None:
    """Prints rows as an aligned table."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    for line in lines:
        print(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def machine() -> str:
    """The machine in one line."""
    name = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists() and (found := re.search(r"model name\s*: (.*)", cpu.read_text())):
        name = found[1]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({name}), {memory:.0f} GB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def write(rows: Sequence[Row], rounds: int, load_before: float) -> None:
    """Puts the table into docs/performance.md, in place of the one that was there."""
    table = [HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in rows)]
    text = "\n".join(
        [
            BEGIN,
            f"Measured on {datetime.date.today().isoformat()}, {machine()}; medians of {rounds} interleaved rounds; "
            f"load average before {load_before:.1f}, after {os.getloadavg()[0]:.1f}.",
            "",
            *(f"| {' | '.join(line)} |" for line in table),
            END,
        ]
    )
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + text + rest.partition(END)[2])
