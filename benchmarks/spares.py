"""A power cut of one node until all ranks run again, over SSH: with a spare, and with a free host of the pool."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.pool import pool
from benchmarks.processes import wait_for
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig
from flowlite.api.task import Task
from flowlite.testing.hosts import Cluster

NODES, BOUND = 2, 3.0
# What trainers import. The nodes begin to import it when their agent starts, a spare long before.
_TRAINS = """
import os, time
import torch
print('up', os.environ['FLOW_ATTEMPT'], time.time(), flush=True)
time.sleep(0 if os.environ['FLOW_ATTEMPT'] != '1' else 3600)
"""


def measure(rounds: int) -> list[Row]:
    """Two rows, with the worst of all rounds. Detection ends when it is certain that nothing runs on the lost node."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        Path("train.py").write_text(_TRAINS)
        with pool(NODES + 2) as hosts:
            spare = [_recover(hosts, spares=1) for _ in range(rounds)]
            free = [_recover(hosts, spares=0) for _ in range(rounds)]
    return [
        _row("power cut to all ranks running again, spares=1", spare, BOUND),
        _row("the same without a spare, a free host in the pool", free, None),
    ]


def _row(what: str, taken: list[tuple[float, float]], bound: float | None) -> Row:
    detected = max(detection for detection, _ in taken)
    after = max(restart for _, restart in taken)
    return Row(
        what,
        f"{seconds(max(map(sum, taken)))}, of which {seconds(after)} after detection",
        f"worst of {len(taken)}; detection at most {seconds(detected)}",
        to_reach="" if bound is None else f"detection + {bound:.0f} s",
        reached=None if bound is None else after <= bound,
    )


def _recover(hosts: Cluster, spares: int) -> tuple[float, float]:
    """Seconds from the power cut until the next attempt may begin, and from there until all ranks run."""
    config = TaskConfig(
        command=[sys.executable, "train.py"],
        num_instances=NODES,
        spares=spares,
        retries=1,
        grace_seconds=2,
    )
    task: Task[None] = Flow().run(config)
    wait_for(lambda: len(_up(task, 1)) == NODES, "all ranks are up", timeout=180)
    if spares:
        wait_for(lambda: "is ready to take" in _events(task), "the spare is ready", timeout=180)
    address = next(node.address for node in task.nodes if node.rank == 1)
    lost = next(host for host in hosts if host.address == address)
    cut = time.time()
    lost.power_cut()
    task.wait(300)
    up = max(_up(task, 2))
    certain = next(each.at for each in task.events() if each.text.startswith("attempt 2"))
    lost.start()
    wait_for(lambda: lost.alive, "the host is up again")
    # A host that is lost in each round would be avoided from the second one on.
    Path(os.environ["FLOW_HOME"], "ssh", "unfit.json").unlink(missing_ok=True)
    print(f"spares={spares}: {certain - cut:.2f} s and {up - certain:.2f} s", file=sys.stderr)
    return certain - cut, up - certain


def _up(task: Task[None], attempt: int) -> list[float]:
    """When the ranks of an attempt began to run."""
    words = [line.text.split() for line in task.logs()]
    return [float(at) for what, number, at in words if what == "up" and number == str(attempt)]


def _events(task: Task[None]) -> str:
    return "\n".join(each.text for each in task.events())
