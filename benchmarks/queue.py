"""For how long a host is idle while tasks wait for it: hundreds of tasks that do nothing, on four hosts over SSH."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig
from flowlite.state.records import InstanceRecord, TaskRecord
from flowlite.state.store import Store
from flowlite.testing.hosts import Cluster

HOSTS, TASKS, BOUND = 4, 500, 0.5
# Another run of this benchmark on a machine that has less time: FLOW_BENCH_QUEUE=100.
_TASKS = int(os.environ.get("FLOW_BENCH_QUEUE", TASKS))
# By which two tasks may begin in another order than they came: for two hosts that become free at the same moment.
_TOGETHER = 1.0


def measure(rounds: int) -> list[Row]:
    """Two rows. The tasks are queued while all hosts are held, and then run one after the other; one round."""
    with pool(HOSTS) as hosts:
        _submit()
        peer = statistics.median(_ssh(hosts) for _ in range(rounds))
        for host in hosts:
            host.exec(["touch", "/tmp/go"])
        began, used = time.monotonic(), _processor_seconds()
        store = Store(Path(os.environ["FLOW_HOME"], "state.db"))
        while store.unfinished():
            # Rarely, since whoever looks takes processor time from them.
            time.sleep(1.0)
        taken = time.monotonic() - began
        used = _processor_seconds() - used
        idle = _idle(store)
    middle, worst = statistics.median(idle), max(idle)
    late = sorted(idle)[-len(idle) // 100]
    said = f"in the middle {seconds(middle)}, 99 of 100 at most {seconds(late)}; ssh HOST true {seconds(peer)}"
    return [
        Row(
            f"{_TASKS} queued tasks on {HOSTS} hosts: a host idle while one waits, at most",
            seconds(worst),
            said,
            worst / peer,
            f"<= {BOUND:g} s",
            worst <= BOUND,
        ),
        Row(
            "the same: a task, hosts included",
            f"{seconds(taken * HOSTS / _TASKS)} of a host",
            f"processor time of the machine: {seconds(used / _TASKS)}",
        ),
    ]


def _submit() -> None:
    flow = Flow()
    hold = ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done"]
    for number in range(HOSTS):
        flow.run(TaskConfig(name=f"holder{number}", command=hold))
    for number in range(_TASKS):
        flow.run(TaskConfig(name=f"t{number}", command=["true"]))
        if not number % 50:
            print(f"{number} tasks are queued", file=sys.stderr)


def _ssh(hosts: Cluster) -> float:
    began = time.monotonic()
    words = ["ssh", "-F", str(hosts.ssh_config), hosts[0].name, "true"]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - began


def _processor_seconds() -> float:
    """What all processes of this machine have computed since it started."""
    user, nice, system, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _idle(store: Store) -> list[float]:
    """Seconds between two tasks on one host. Raises RuntimeError if a task was lost or came before its turn."""
    tasks = sorted(store.list_tasks(), key=lambda task: task.created_at)
    failed = [task.name for task in tasks if task.state != "completed"]
    # A task records that it launches when it is its turn.
    began = {task.id: store.intents(task.id)[0].created_at for task in tasks}
    passed = [
        (one.name, other.name) for one, other in pairwise(tasks) if _passed(began, one, other)
    ]
    if failed or passed or len(tasks) != HOSTS + _TASKS:
        raise RuntimeError(f"{len(tasks)} tasks, failed: {failed}, passed: {passed}")
    by_host: dict[str, list[InstanceRecord]] = {}
    for row in sorted(store.instances(), key=lambda row: row.launched_at):
        by_host.setdefault(str(row.data["slot"]), []).append(row)
    return [
        max(0.0, after.launched_at - (before.ended_at or 0.0))
        for rows in by_host.values()
        for before, after in pairwise(rows)
    ]


def _passed(began: dict[str, float], one: TaskRecord, other: TaskRecord) -> bool:
    return began[other.id] < began[one.id] - _TOGETHER
