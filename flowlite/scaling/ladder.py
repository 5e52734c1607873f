"""Computes throughput, speed-up and efficiency from runs on more and more nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass

GOOD = 0.9
"""The efficiency from which scaling is called good, from the OpenCLIP guide."""

_MOST_RUNGS = 64


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        nodes: Number of nodes.
        workers: Number of processes on all nodes.
        value: The metric; None if the run has none.
        reason: Why the run has no metric; else "".
        task: Id of the task; "" if none was submitted.
        seconds: From submission to the end.
        cost: US dollars.
    """

    nodes: int
    workers: int
    value: float | None = None
    reason: str = ""
    task: str = ""
    seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Rung:
    """All runs with one number of nodes.

    Attributes:
        throughput: Median of the runs that have the metric; None if none has it.
        speed_up: Throughput divided by that of the first rung that has one.
        efficiency: Speed-up divided by the ratio of the numbers of nodes; 1 is ideal.
    """

    nodes: int
    workers: int
    runs: tuple[Run, ...]
    throughput: float | None
    speed_up: float | None
    efficiency: float | None

    @property
    def values(self) -> list[float]:
        """The metric of each run that has one."""
        return [run.value for run in self.runs if run.value is not None]

    @property
    def reason(self) -> str:
        """Why runs have no metric; "" if all have it."""
        failed = [run for run in self.runs if run.value is None]
        if not failed:
            return ""
        more = f" ({len(failed)} of {len(self.runs)} runs)" if len(self.runs) > 1 else ""
        return f"{failed[0].reason}{more}"

    def to_json(self) -> dict[str, Any]:
        """The rung as in the output of `--json` and in the file."""
        return {
            "nodes": self.nodes,
            "workers": self.workers,
            "throughput": self.throughput,
            "speed_up": self.speed_up,
            "efficiency": self.efficiency,
            "reason": self.reason or None,
            "runs": [
                {
                    "task": run.task or None,
                    "value": run.value,
                    "reason": run.reason or None,
                    "seconds": round(run.seconds, 3),
                    "cost": round(run.cost, 6),
                }
                for run in self.runs
            ],
        }


def rungs_of(runs: Iterable[Run]) -> list[Rung]:
    """The ladder, from few nodes to many. Speed-ups are relative to the lowest rung that has a throughput."""
    by_nodes: dict[int, list[Run]] = {}
    for run in runs:
        by_nodes.setdefault(run.nodes, []).append(run)
    found: list[Rung] = []
    base: tuple[int, float] | None = None
    for nodes, these in sorted(by_nodes.items()):
        values = [run.value for run in these if run.value is not None]
        throughput = median(values) if values else None
        speed_up = efficiency = None
        if throughput is not None:
            base = base or (nodes, throughput)
            speed_up = throughput / base[1]
            efficiency = speed_up / (nodes / base[0])
        workers = max(run.workers for run in these)
        found.append(Rung(nodes, workers, tuple(these), throughput, speed_up, efficiency))
    return found


def read_nodes(text: str) -> list[int]:
    """Parses `1,2,4` into numbers of nodes, sorted and without duplicates. Raises ConfigError."""
    found = set()
    for word in text.split(","):
        if not word.strip().isdecimal() or not int(word):
            raise ConfigError(
                f"--nodes: {text!r} is not allowed; write numbers of nodes with commas, as in --nodes 1,2,4"
            )
        found.add(int(word))
    if len(found) > _MOST_RUNGS:
        raise ConfigError(f"--nodes: {len(found)} numbers are too many; give at most {_MOST_RUNGS}")
    return sorted(found)


def first_measured(rungs: Sequence[Rung]) -> Rung | None:
    """The rung that the others are relative to."""
    return next((rung for rung in rungs if rung.throughput is not None), None)
