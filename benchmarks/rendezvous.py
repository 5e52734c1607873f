"""From the first member's dial to GO at all of them, beside torch's TCPStore with as many clients."""

from __future__ import annotations

from functools import partial

from benchmarks.measure import MARKS, PROGRAMS, Run, command, interleave, python
from benchmarks.table import Row, seconds

COUNTS = (64, 1024, 4096)
BOUND = 0.6


def measure(rounds: int) -> list[Row]:
    """A row for each count, and two for the growth: by the clock, and of the leader's processor time."""
    rows, ours, leader = [], {}, {}
    for count in COUNTS:
        medians = interleave(
            {
                "flowlite": partial(_run, "rendezvous_flowlite.py", count),
                "torch": partial(_run, "rendezvous_torch.py", count),
            },
            rounds,
        )
        ours[count], theirs = medians["flowlite"].reached, medians["torch"].reached
        leader[count] = medians["flowlite"].own
        rows.append(
            Row(
                f"rendezvous, join to GO, {count:,} simulated members",
                seconds(ours[count]),
                f"torch TCPStore join + barrier {seconds(theirs)}",
                ours[count] / theirs,
                f"<= {BOUND}",
                ours[count] <= BOUND * theirs,
            )
        )
    few, many = COUNTS[-2:]
    linear = many / few
    for what, taken, bound in (
        ("", ours, "<= 1"),
        (", of the leader's processor time", leader, ""),
    ):
        growth = taken[many] / taken[few]
        rows.append(
            Row(
                f"rendezvous, growth from {few:,} to {many:,} members{what}",
                f"{growth:.1f} x",
                f"linear {linear:.0f} x",
                growth / linear,
                bound,
                growth <= linear if bound else None,
            )
        )
    return rows


def _run(program: str, count: int) -> Run:
    return command(python(PROGRAMS / program, MARKS, str(count)))
