"""Eight ranks that write a million lines of 100 bytes each, followed to the end, beside plain files and `cat`."""

from __future__ import annotations

from functools import partial

from benchmarks.measure import MARKS, PROGRAMS, Run, command, fresh_home, interleave, python
from benchmarks.table import Row, seconds

LINES, WIDTH, RANKS = 1_000_000, 100, 8


def measure(rounds: int) -> list[Row]:
    """One row; the program fails if a line is lost, repeated or out of order."""
    with fresh_home():
        medians = interleave(
            {
                "flowlite": partial(_run, "lines_flowlite.py"),
                "files": partial(_run, "lines_files.py"),
            },
            max(1, rounds // 5),
            warm_up=0,
        )
    ours, files = medians["flowlite"], medians["files"]
    rate = RANKS * LINES * WIDTH / ours.reached / 1e6
    return [
        Row(
            f"{RANKS} ranks x {LINES // 10**6} M lines of {WIDTH} bytes, followed to the end",
            f"{rate:.0f} MB/s, {seconds(ours.reached)}, 0 lines lost",
            f"written to files, then `cat`: {seconds(files.reached)}",
            ours.reached / files.reached,
            ">= 100 MB/s, 0 lost",
            rate >= 100,
        )
    ]


def _run(program: str) -> Run:
    return command(python(PROGRAMS / program, MARKS, str(LINES), str(WIDTH)))
