"""What each further host costs client and supervisor, up to 1,024 hosts that exist at the wire only.

As in `client_cost.py`, a figure is a slope from 4 hosts on, and counts all processes of the command on this machine.
The hosts are faked (`fake_pool.py`): one process speaks SSH for all of them, and another leads the gang. What both use
is not counted. `SIZES` in the environment replaces the numbers of hosts.
"""

from __future__ import annotations

import os
from functools import partial

from benchmarks.fake_pool import fake_pool
from benchmarks.measure import PROGRAMS, Run, interleave, processor_time, python
from benchmarks.table import Row, seconds

FEW, SIZES = 4, (16, 64, 256, 1024)
BOUND = 0.01
GROWTH_BOUND = 1.2


def measure(rounds: int) -> list[Row]:
    """A row for each number of hosts, and the growth from the second smallest to the largest."""
    asked = os.environ.get("SIZES", "")
    sizes = [int(each) for each in asked.split(",")] if asked else list(SIZES)
    few = _measured(FEW, rounds)
    costs: dict[int, float] = {}
    rows = []
    for size in sizes:
        many = _measured(size, rounds)
        more = size - FEW
        costs[size] = (many.reached - few.reached) / more
        own = (many.own - few.own) / more
        memory = 1024 * (many.peak_mb - few.peak_mb) / more
        rows.append(
            Row(
                f"processor time of the client's machine for each further host, {FEW} to {size} faked hosts",
                f"{1000 * costs[size]:.1f} ms, {1000 * own:.1f} of them in the client",
                f"memory of the supervisor at its peak: {memory:.0f} KB a host; {seconds(many.seconds)} in all",
                None,
                f"<= {seconds(BOUND)}",
                costs[size] <= BOUND,
            )
        )
    first, last = sizes[min(1, len(sizes) - 1)], sizes[-1]
    growth = costs[last] / costs[first]
    rows.append(
        Row(
            f"the same, {last} faked hosts beside {first}",
            f"{1000 * costs[last]:.1f} ms",
            f"{1000 * costs[first]:.1f} ms",
            growth,
            f"<= {GROWTH_BOUND}",
            growth <= GROWTH_BOUND,
        )
    )
    return rows


def _measured(size: int, rounds: int) -> Run:
    with fake_pool(size) as unknown:
        found = interleave({"": partial(_run, size)}, min(rounds, 3))[""]
        if unknown.exists():
            raise RuntimeError(f"the fake hosts do not understand: {unknown.read_text()[:2000]}")
    return found


def _run(size: int) -> Run:
    return processor_time(*python(PROGRAMS / "hosts_flowlite.py", str(size)))
