"""From a line's `write` on a host to its coming out of `task.logs(follow=True)` here."""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.measure import PROGRAMS
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig

NODES, PER_NODE, SECONDS, PER_SECOND = 4, 2, 10, 1000
P50_BOUND, P99_BOUND = 0.3, 1.5


def measure(rounds: int) -> list[Row]:
    """Two rows, of one run: it has a hundred thousand lines in it."""
    program = (PROGRAMS / "lines_timed.py").read_text()
    command = [sys.executable, "-c", program, str(SECONDS), str(PER_SECOND)]
    with pool(NODES):
        task = Flow().run(
            TaskConfig(command=command, num_instances=NODES, processes_per_node=PER_NODE)
        )
        late: list[float] = []
        seen: dict[int, int] = {}
        for line in task.logs(follow=True):
            now = time.time()
            number, at = line.text.split()
            if int(number) != seen.get(line.rank, 0):
                raise RuntimeError(f"rank {line.rank}: line {number} came after {seen[line.rank]}")
            seen[line.rank] = int(number) + 1
            late.append(now - float(at))
        task.result()
    wanted = NODES * PER_NODE * SECONDS * PER_SECOND
    lost = wanted - len(late)
    what = f"a line's way to its reader, {NODES} hosts x {PER_NODE} ranks x {PER_SECOND:,} lines/s"
    cuts = statistics.quantiles(late, n=100)
    told = f"{lost} of {wanted:,} lines lost"
    return [
        Row(f"{what}: median", seconds(cuts[49]), told, None, "<= 0.3 s", cuts[49] <= P50_BOUND),
        Row(
            f"{what}: 99th percentile",
            seconds(cuts[98]),
            told,
            None,
            "<= 1.5 s, 0 lost",
            cuts[98] <= P99_BOUND and lost == 0,
        ),
    ]
