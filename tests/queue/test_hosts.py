"""Many tasks on few hosts: all run, in the order in which they were submitted, and no host waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from flowlite.state.store import Store
from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from pathlib import Path

    from flowlite.testing.hosts import Cluster

SUBMIT = """
import sys
from flowlite import Flow, TaskConfig
flow = Flow()
hold = ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done"]
for number in range(int(sys.argv[2])):
    flow.run(TaskConfig(name=f"holder{number}", command=hold))
for number in range(int(sys.argv[1])):
    flow.run(TaskConfig(name=f"t{number}", command=["true"]))
"""


def idle_seconds(store: Store, hosts: int) -> list[float]:
    """For how long each host was without a task, between two tasks and while there was one that waited."""
    submitted = {record.id: record.created_at for record in store.list_tasks()}
    rows = sorted(store.instances(), key=lambda row: row.launched_at)
    by_host: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        assert row.ended_at is not None
        by_host.setdefault(row.data["slot"], []).append((row.launched_at, row.ended_at))
    assert len(by_host) == hosts
    idle = []
    for spans in by_host.values():
        for (_, end), (begin, _) in pairwise(spans):
            waited = min(submitted[row.task_id] for row in rows if row.launched_at >= begin)
            idle.append(max(0.0, begin - max(end, waited)))
    return idle


def play(lab: Lab, tasks: int, seconds: float) -> Store:
    """Submits that many tasks that do nothing while all hosts are held, and waits until all have ended."""
    with lab.cluster.enter_laptop():
        subprocess.run(
            [sys.executable, "-c", SUBMIT, str(tasks), str(len(lab.hosts))],
            env=lab.environment,
            cwd=lab.home,
            timeout=seconds,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    for host in lab.hosts:
        host.exec(["touch", "/tmp/go"])
    store = Store(lab.home / "state.db")
    eventually(lambda: not store.list_tasks(unfinished=True), timeout=seconds, every=0.5)
    records = sorted(store.list_tasks(), key=lambda record: record.created_at)
    assert [record.state for record in records] == ["completed"] * (tasks + len(lab.hosts)), (
        lab.supervisor_logs()
    )
    # Each records its intent when it is its turn. Two may have their turns at the same moment, for two hosts.
    began = {record.id: store.intents(record.id)[0].created_at for record in records}
    late = [
        (one.name, other.name)
        for one, other in pairwise(records)
        if began[other.id] < began[one.id] - 1.0
    ]
    assert late == []
    return store


@pytest.mark.slow
def test_twenty_tasks_share_four_hosts(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home)
    store = play(lab, 20, seconds=400)
    idle = idle_seconds(store, len(lab.hosts))
    print(f"idle at most {max(idle):.2f} s, {sorted(idle)[len(idle) // 2]:.2f} s in the middle")
    assert sorted(idle)[len(idle) // 2] < 5.0
    assert lab.held() == {}


@pytest.mark.hours
def test_five_hundred_tasks_share_four_hosts(hosts: Cluster, flow_home: Path) -> None:
    """The figure is for a machine that does nothing else; `FLOW_TEST_IDLE` sets another bound."""
    lab = Lab(hosts, flow_home)
    store = play(lab, 500, seconds=5400)
    idle = idle_seconds(store, len(lab.hosts))
    print(f"idle at most {max(idle):.2f} s, {sorted(idle)[len(idle) // 2]:.2f} s in the middle")
    assert max(idle) <= float(os.environ.get("FLOW_TEST_IDLE", "0.5"))
