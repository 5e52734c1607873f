"""What a failure costs on real hosts: until it is reported, and until the gang runs again."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from benchmarks.pool import pool
from benchmarks.processes import wait_for
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig
from flowlite.api.task import Task
from flowlite.errors import FlowError
from flowlite.testing.hosts import Cluster

NODES, PER_NODE = 3, 2
NODE_BOUND, WORKER_BOUND, AGAIN_BOUND = 45.0, 2.0, 5.0
_WAITS = "import os, time; print('up', os.getpid(), flush=True); time.sleep(600)"
_CRASHES_ONCE = (
    "import os, sys, time; print('up', time.time(), flush=True); "
    "again = os.environ['FLOW_ATTEMPT'] != '1'; time.sleep(0 if again else 1); "
    "sys.exit(0 if again or os.environ['RANK'] != '3' else print('crash', time.time(), flush=True) or 3)"
)


def measure(rounds: int) -> list[Row]:
    """Three rows. The peers have no figure to set beside: torchrun with gloo does not come back in torch 2.13."""
    with pool(NODES + 1) as hosts:
        again = [_again() for _ in range(rounds)]
        worker = [_until_reported(hosts, _kill_worker) for _ in range(rounds)]
        node = [_until_reported(hosts, _cut_power) for _ in range(min(rounds, 3))]
    return [
        _row("power cut of a host to task failed, the node named", node, NODE_BOUND),
        _row("kill -9 of a worker to task failed, the rank named", worker, WORKER_BOUND),
        _row("crash of a rank to all ranks running again, same hosts", again, AGAIN_BOUND),
    ]


def _row(what: str, taken: list[float], bound: float) -> Row:
    return Row(
        what,
        seconds(statistics.median(taken)),
        f"worst of {len(taken)}: {seconds(max(taken))}",
        to_reach=f"<= {bound:.0f} s",
        reached=max(taken) <= bound,
    )


def _up(task: Task[None]) -> list[str]:
    return [line for line in str(task.logs()).splitlines() if " up " in line]


def _until_reported(hosts: Cluster, inflict: Callable[[Cluster, Task[None]], str]) -> float:
    task = Flow().run(_config([sys.executable, "-c", _WAITS]))
    wait_for(lambda: len(_up(task)) == NODES * PER_NODE, "all ranks are up")
    began = time.time()
    named = inflict(hosts, task)
    try:
        task.result(60)
    except FlowError as error:
        if named not in str(error):
            raise RuntimeError(f"{named} is not named: {error}") from error
    else:
        raise RuntimeError("the task did not fail")
    assert task.finished_at is not None
    taken = task.finished_at.timestamp() - began
    for host in hosts:
        if not host.alive:
            host.start()
    return taken


def _cut_power(hosts: Cluster, task: Task[None]) -> str:
    address = next(node.address for node in task.nodes if node.rank == 1)
    next(host for host in hosts if host.address == address).power_cut()
    return "node 1"


def _kill_worker(hosts: Cluster, task: Task[None]) -> str:
    pid = next(line.text.split()[1] for line in task.logs(node=1) if line.rank == 3)
    task.exec(["kill", "-9", pid], node=1)
    return "rank 3"


def _again() -> float:
    task = Flow().run(_config([sys.executable, "-c", _CRASHES_ONCE], retries=1))
    task.result(60)
    lines = [line.text.split() for line in task.logs()]
    crashed = next(float(at) for what, at in lines if what == "crash")
    after = [float(at) for what, at in lines if what == "up" and float(at) > crashed]
    if len(after) != NODES * PER_NODE:
        raise RuntimeError(f"{len(after)} ranks of {NODES * PER_NODE} came up again")
    return max(after) - crashed


def _config(command: list[str], retries: int = 0) -> TaskConfig:
    return TaskConfig(
        command=command, num_instances=NODES, processes_per_node=PER_NODE, retries=retries
    )
