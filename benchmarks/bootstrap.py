"""From submission to GO on many hosts, beside OpenSSH running `true` on the same hosts, all at a time.

No project is sent: what that costs is in `client_cost`, `client_bytes` and `project_files`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from functools import partial

from benchmarks.measure import Run, interleave
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig
from flowlite.testing.hosts import Cluster

SIZES = (4, 16, 64)
WARM_BOUND = 3.0
GROWTH_BOUND = 6.0
_END_SECONDS = 120.0


def measure(rounds: int) -> list[Row]:
    """Two rows for each size, and the growth from the smallest to the largest."""
    rows: list[Row] = []
    warm: dict[int, float] = {}
    peers: dict[int, float] = {}
    # As for every contestant (measure.environment): compiling ourselves anew is no part of a start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for size in SIZES:
        with pool(size) as hosts:
            cold = _cold(hosts, min(rounds, 3))
            medians = interleave(
                {"warm": partial(_to_go, size), "ssh": partial(_ssh, hosts)}, rounds
            )
        ssh = peers[size] = medians["ssh"].seconds
        warm[size] = medians["warm"].seconds
        peer = f"ssh HOST true, in parallel: {seconds(ssh)}"
        rows += [
            Row(f"submission to GO, {size} hosts, cold", seconds(cold), peer, cold / ssh),
            Row(
                f"submission to GO, {size} hosts, warm",
                seconds(warm[size]),
                peer,
                warm[size] / ssh,
                f"<= {WARM_BOUND:.0f}",
                warm[size] <= WARM_BOUND * ssh,
            ),
        ]
    first, last = SIZES[0], SIZES[-1]
    growth = warm[last] / warm[first]
    rows.append(
        Row(
            f"submission to GO, warm: {last} hosts beside {first}",
            seconds(warm[last]),
            f"{first} hosts: {seconds(warm[first])}; OpenSSH itself {peers[last] / peers[first]:.1f} x",
            growth,
            f"<= {GROWTH_BOUND:.0f}",
            growth <= GROWTH_BOUND,
        )
    )
    return rows


def _cold(hosts: Cluster, rounds: int) -> float:
    """The median with nothing of ours on the hosts."""
    taken = []
    for _ in range(rounds):
        for host in hosts:
            host.exec(["sh", "-c", "rm -rf ~/.flowlite-node"])
        taken.append(_to_go(len(hosts)).seconds)
    return statistics.median(taken)


def _to_go(size: int) -> Run:
    began = time.time()
    task = Flow().run(TaskConfig(command=["true"], num_instances=size, sync=False))
    # A host is free again only when its task is over; the next round needs all of them.
    if not task.wait(_END_SECONDS) or task.started_at is None:
        raise RuntimeError(f"no GO on {size} hosts: {task.status}, {task.reason}")
    return Run(task.started_at.timestamp() - began)


def _ssh(hosts: Cluster) -> Run:
    began = time.monotonic()
    children = [
        subprocess.Popen(
            ["ssh", "-F", str(hosts.ssh_config), host.name, "true"], stdin=subprocess.DEVNULL
        )
        for host in hosts
    ]
    if sum(child.wait() != 0 for child in children):
        raise RuntimeError("ssh could not reach all hosts")
    return Run(time.monotonic() - began)
