"""`flow top`: shows the use of GPU, memory, CPU and network of each node of a task, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.node_queries import ask_program, in_parallel
from flowlite.cli.task_argument import OptionalRunningTask, task_or_newest
from flowlite.errors import NotFound
from flowlite.output import printing

if TYPE_CHECKING:
    from flowlite.api.task import Task

_COLUMNS = ("NODE", "GPU", "GPU MEMORY", "CPU", "MEMORY", "RECEIVED", "SENT", "RANKS")
# Seconds between the two samples of the first picture.
_FIRST_SECONDS = 0.5
_GB = 1e9

Sample = Mapping[str, Any]


def top(
    task: OptionalRunningTask = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.5, help="Seconds between two updates.")
    ] = 2.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the table once and end; the default away from a terminal."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
) -> None:
    """Show GPU, memory, CPU and network use of every node, live."""
    from flowlite.api.client import Flow

    found = task_or_newest(Flow(), task, unfinished=True)
    if found.record.final:
        raise NotFound(
            f"task {found.name} ({found.id}) has ended ({found.status}); its nodes are given back"
        )
    if json:
        output.print_json("top", {"task": found.id, "nodes": next(_pictures(found, interval))})
    elif once or not printing.can_rewrite(sys.stdout):
        output.table(_COLUMNS, [_row(each) for each in next(_pictures(found, interval))])
    else:
        _live(found, interval)


def _live(task: Task[Any], interval: float) -> None:
    from rich.live import Live
    from rich.table import Table

    from flowlite.cli.output import cell

    with Live(auto_refresh=False, screen=False) as live:
        for picture in _pictures(task, interval):
            # The agents end a moment before the task is final; their rows would only be errors.
            if task.record.state != "running" and any("error" in each for each in picture):
                if task.record.final:
                    return
                continue
            table = Table(title=cell(f"{task.name} ({task.id}), {task.status}"))
            for column in _COLUMNS:
                table.add_column(column)
            for each in picture:
                table.add_row(*map(cell, _row(each)))
            live.update(table, refresh=True)
            if task.record.final:
                return


def _pictures(task: Task[Any], interval: float) -> Iterator[list[dict[str, Any]]]:
    """Yields the rates of each node between two samples. The first two samples are close together."""
    before = _samples(task)
    time.sleep(_FIRST_SECONDS)
    while True:
        after = _samples(task)
        yield rates(before, after)
        before = after
        time.sleep(interval)


def _samples(task: Task[Any]) -> list[dict[str, Any]]:
    def check(sample: dict[str, Any]) -> object:
        return _row({"node": 0, **between(sample, sample)})

    nodes = range(task.num_instances)
    return in_parallel(lambda node: ask_program(task, node, "stats", check=check), nodes)


def rates(before: Sequence[Sample], after: Sequence[Sample]) -> list[dict[str, Any]]:
    """The rates of each node between two samples of all nodes. A gang may shrink and grow from one to the next."""
    earlier = [*before[: len(after)], *after[len(before) :]]
    return [
        {"node": node, **between(*pair)}
        for node, pair in enumerate(zip(earlier, after, strict=True))
    ]


def between(before: Sample, after: Sample) -> dict[str, Any]:
    """The rates between two samples of one node, None if unknown; {"error"} if the node did not answer."""
    if "error" in before or "error" in after:
        return {"error": after.get("error") or before.get("error")}
    if after["monotonic"] < before["monotonic"]:
        # Another machine has taken its place.
        before = after
    seconds = max(1e-3, after["monotonic"] - before["monotonic"])
    earlier = {worker["pid"]: worker["cpu_seconds"] for worker in before["workers"]}
    spent = [
        max(0.0, worker["cpu_seconds"] - earlier.get(worker["pid"], worker["cpu_seconds"]))
        for worker in after["workers"]
    ]
    return {
        "cores": after["cores"],
        "cpu_percent": round(100 * sum(spent) / seconds, 1),
        "machine_cpu_percent": _machine(before["cpu"], after["cpu"]),
        "memory": sum(worker["rss"] for worker in after["workers"]),
        "machine_memory": after["memory"],
        "received_per_second": _rate(before, after, "received", seconds),
        "sent_per_second": _rate(before, after, "sent", seconds),
        "gpus": after["gpus"],
        "ranks": after["ranks"],
    }


def _machine(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> float | None:
    if before is None or after is None or after["total"] <= before["total"]:
        return None
    busy = after["busy"] - before["busy"]
    return round(100 * busy / (after["total"] - before["total"]), 1)


def _rate(before: Sample, after: Sample, name: str, seconds: float) -> float | None:
    if before["network"] is None or after["network"] is None:
        return None
    return float(round((after["network"][name] - before["network"][name]) / seconds))


# Text


def _row(node: Mapping[str, Any]) -> list[str]:
    from flowlite.diagnosis.hang import spans

    if "error" in node:
        return [str(node["node"]), "-", "-", "-", "-", "-", "-", str(node["error"])]
    machine = node["machine_memory"]
    of = f" of {machine['total'] / _GB:.0f}" if machine else ""
    return [
        str(node["node"]),
        _gpu_use(node["gpus"]),
        _gpu_memory(node["gpus"]),
        f"{node['cpu_percent']:.0f}% of {100 * node['cores']}%",
        f"{node['memory'] / _GB:.1f}{of} GB",
        _speed(node["received_per_second"]),
        _speed(node["sent_per_second"]),
        spans(node["ranks"]) or "none",
    ]


def _gpu_use(gpus: Sequence[Mapping[str, Any]]) -> str:
    known = [gpu["utilisation"] for gpu in gpus if gpu["utilisation"] is not None]
    if not known:
        return "-"
    each = " ".join(str(value) for value in known)
    return f"{each} %" if len(known) <= 8 else f"{sum(known) / len(known):.0f} % of {len(known)}"


def _gpu_memory(gpus: Sequence[Mapping[str, Any]]) -> str:
    used = [gpu["memory_used"] for gpu in gpus if gpu["memory_used"] is not None]
    total = [gpu["memory_total"] for gpu in gpus if gpu["memory_total"] is not None]
    return f"{sum(used) / _GB:.0f} of {sum(total) / _GB:.0f} GB" if total else "-"


def _speed(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if per_second < 1000:
            return f"{per_second:.0f} {unit}/s"
        per_second /= 1000
    return f"{per_second:.1f} GB/s"
