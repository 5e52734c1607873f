"""Finds the nodes of a gang that are slower than the others, from what all have measured before GO. Pure.

A machine that is found slow is avoided, so no node may decide by what it reports that others are: each has one voice,
however many figures it reports, and paths count only if they lead from it to another node of the gang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

SLOW_GPU, SLOW_CPU, SLOW_LINK = 0.7, 0.5, 0.3
"""Shares of the others' median below which a GPU, a processor or a path between nodes is slow."""
_NAMED = 4


@dataclass(frozen=True)
class Outlier:
    """A slow node: its rank, and a sentence with its figure and the figure of the others."""

    rank: int
    why: str


def slow_nodes(prepared: Sequence[Mapping[str, Any]]) -> list[Outlier]:
    """Returns the nodes that compute slower than the others, or reach them slower. `prepared` by node rank."""
    return _slow_to_compute(prepared) or _slow_to_reach(prepared)


def summary(prepared: Sequence[Mapping[str, Any]]) -> str:
    """Returns what was measured in one sentence; "" if nothing was."""
    said = []
    speeds = [speed for each in prepared for speed in (each.get("speeds") or {}).values()]
    units = {str(each.get("unit")) for each in prepared if each.get("speeds")}
    if speeds and len(units) == 1:
        said.append(f"matrix products at {_range(speeds)} {units.pop()}")
    links = [
        (frozenset((str(rank), other)), speed)
        for rank, each in enumerate(prepared)
        for other, speed in (each.get("links") or {}).items()
    ]
    if links:
        # Two nodes may have measured the path between them in both directions.
        count = len({ends for ends, _ in links})
        pairs = "1 pair" if count == 1 else f"{count} pairs"
        said.append(f"{_range([speed / 1e6 for _, speed in links])} MB/s between {pairs} of nodes")
    said += dict.fromkeys(str(each["skipped"]) for each in prepared if each.get("skipped"))
    return f"preflight: {'; '.join(said)}" if said else ""


def _slow_to_compute(prepared: Sequence[Mapping[str, Any]]) -> list[Outlier]:
    found = []
    for rank, each in enumerate(prepared):
        unit = each.get("unit", "")
        others = [
            median(other["speeds"].values())
            for number, other in enumerate(prepared)
            if number != rank and other.get("speeds") and other.get("unit", "") == unit
        ]
        if not others:
            continue
        usual = median(others)
        least = (SLOW_CPU if unit == "GFLOPS" else SLOW_GPU) * usual
        for name, speed in (each.get("speeds") or {}).items():
            if speed < least:
                told = f"{name} multiplies matrices at {speed:.4g} {unit}, those of the other nodes at {usual:.4g}"
                found.append(Outlier(rank, told))
                break
    return found[:_NAMED]


def _slow_to_reach(prepared: Sequence[Mapping[str, Any]]) -> list[Outlier]:
    """Returns the nodes most of whose paths are slower than the paths between the other nodes."""
    ranks = {str(rank): rank for rank in range(len(prepared))}
    links = [
        (rank, ranks[other], float(speed))
        for rank, each in enumerate(prepared)
        for other, speed in (each.get("links") or {}).items()
        if ranks.get(other, rank) != rank
    ]
    found = []
    for rank in range(len(prepared)):
        mine = [speed for *ends, speed in links if rank in ends]
        others = [speed for *ends, speed in links if rank not in ends]
        if not mine or not others:
            continue
        usual = median(others)
        slow = [speed for speed in mine if speed < SLOW_LINK * usual]
        if len(slow) * 2 > len(mine):
            told = (
                f"it exchanges {median(slow) / 1e6:.4g} MB/s with the other nodes, which have {usual / 1e6:.4g} MB/s "
                "between each other"
            )
            found.append(Outlier(rank, told))
    return found[:_NAMED]


def _range(figures: Sequence[float]) -> str:
    least, most = f"{min(figures):.4g}", f"{max(figures):.4g}"
    return least if least == most else f"{least} to {most}"
