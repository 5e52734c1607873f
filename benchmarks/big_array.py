"""An array of 1 GB as argument and as result, beside a pickle of protocol 5 in a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.measure import MARKS, PROGRAMS, Run, command, fresh_home, interleave, python
from benchmarks.processes import PeakMemory
from benchmarks.table import Row, seconds

COUNT = 10**9 // 8  # of float64


def measure(rounds: int) -> list[Row]:
    """Rows for time and memory, each way."""
    rows = []
    for way in ("argument", "result"):
        with fresh_home() as home:
            medians = interleave(
                {
                    "flowlite": partial(_measured, home, way, "array_flowlite.py"),
                    "pickle": partial(_measured, home, way, "array_pickle.py"),
                },
                max(3, rounds // 2),
            )
        ours, peer = medians["flowlite"], medians["pickle"]
        rows += [
            Row(
                f"1 GB array as {way}: the call",
                seconds(ours.reached),
                f"pickle 5 to a file and back {seconds(peer.reached)}",
                ours.reached / peer.reached,
                "<= 2",
                ours.reached <= 2 * peer.reached,
            ),
            Row(
                f"1 GB array as {way}: memory of all processes at the peak",
                f"{ours.peak_mb:.0f} MB",
                f"the same {peer.peak_mb:.0f} MB",
                ours.peak_mb / peer.peak_mb,
                "<= 1.3",
                ours.peak_mb <= 1.3 * peer.peak_mb,
            ),
        ]
    return rows


def _measured(home: Path, way: str, program: str) -> Run:
    with PeakMemory(home) as memory:
        run = command(python(PROGRAMS / program, MARKS, way, str(COUNT)))
    return Run(run.seconds, run.reached, memory.mb)
