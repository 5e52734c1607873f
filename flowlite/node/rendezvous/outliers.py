"""Finds the nodes of a gang that are slower than the others, from what all have measured before GO. Pure.

A machine that is found slow is avoided, so no node may decide by what it reports that others are: each has one voice,
however many figures it reports, and paths count only if they lead from it to another node of the gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..quick_dataclass import dataclass

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
    nodes_by_unit: dict[str, list[int]] = {}
    for rank, each in enumerate(prepared):
        if each.get("speeds"):
            nodes_by_unit.setdefault(each.get("unit", ""), []).append(rank)
    found = []
    for unit, nodes in nodes_by_unit.items():
        share = SLOW_CPU if unit == "GFLOPS" else SLOW_GPU
        figures = [(_median(prepared[rank]["speeds"].values()), (rank,)) for rank in nodes]
        for rank, (_, usual) in _beside_others(figures).items():
            for name, speed in prepared[rank]["speeds"].items():
                if speed < share * usual:
                    told = f"{name} multiplies matrices at {speed:.4g} {unit}, those of the other nodes at {usual:.4g}"
                    found.append(Outlier(rank, told))
                    break
    return sorted(found, key=lambda outlier: outlier.rank)[:_NAMED]


def _slow_to_reach(prepared: Sequence[Mapping[str, Any]]) -> list[Outlier]:
    """Returns the nodes most of whose paths are slower than the paths between the other nodes."""
    ranks = {str(rank): rank for rank in range(len(prepared))}
    links = [
        (float(speed), (rank, ranks[other]))
        for rank, each in enumerate(prepared)
        for other, speed in (each.get("links") or {}).items()
        if ranks.get(other, rank) != rank
    ]
    found = []
    for rank, (mine, usual) in sorted(_beside_others(links).items()):
        slow = [speed for speed in mine if speed < SLOW_LINK * usual]
        if len(slow) * 2 > len(mine):
            told = (
                f"it exchanges {_median(slow) / 1e6:.4g} MB/s with the other nodes, which have {usual / 1e6:.4g} MB/s "
                "between each other"
            )
            found.append(Outlier(rank, told))
    return found[:_NAMED]


def _beside_others(
    figures: Sequence[tuple[float, Sequence[int]]],
) -> dict[int, tuple[list[float], float]]:
    """Returns the figures of each node, and the median of those of the others; no node that has no figure, or all.

    Everything is sorted once. To sort the figures of the others for each node would take seconds before GO in a gang of
    thousands.

    Args:
        figures: Each with the ranks of the nodes that it belongs to.
    """
    ordered = sorted(figures)
    positions: dict[int, list[int]] = {}
    for position, (_, ranks) in enumerate(ordered):
        for rank in ranks:
            positions.setdefault(rank, []).append(position)
    return {
        rank: ([ordered[each][0] for each in own], _median_without(ordered, own))
        for rank, own in positions.items()
        if len(own) < len(ordered)
    }


def _median(figures: Iterable[float]) -> float:
    # `statistics` imports all about fractions and random numbers, before each GO.
    return _median_without([(each, ()) for each in sorted(figures)], ())


def _median_without(ordered: Sequence[tuple[float, Sequence[int]]], out: Sequence[int]) -> float:
    """The median of sorted figures apart from those at some positions, which are sorted, too."""
    left = len(ordered) - len(out)
    middle = []
    for place in ((left - 1) // 2, left // 2):
        for position in out:
            place += position <= place
        middle.append(ordered[place][0])
    return sum(middle) / 2


def _range(figures: Sequence[float]) -> str:
    least, most = f"{min(figures):.4g}", f"{max(figures):.4g}"
    return least if least == most else f"{least} to {most}"
