"""What is left when something is killed around a lease: nothing, and the task goes on where it can."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.node.system import processes
from tests.helpers import eventually
from tests.providers.lab import Lab, left_on

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

WAIT = "until [ -e /tmp/go ]; do sleep 0.1; done"


def kill_supervisor(lab: Lab, task: str) -> None:
    """Ends the supervisor as a machine that loses power does."""
    with suppress(ProcessLookupError, FileNotFoundError):
        pid = lab.supervisor(task)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not processes.is_alive(pid))


@pytest.mark.parametrize("moment", ["asked", "taken", "running"])
def test_a_supervisor_killed_around_the_lease(lab: Lab, moment: str) -> None:
    notes = lab.home / "ssh" / "tasks"
    with ThreadPoolExecutor(1) as pool:
        # The moments are short: some are over when the command that submits the task ends.
        submitting = pool.submit(lab.submit, "-N", "2", "--", "sh", "-c", f"{WAIT}; hostname")
        if moment == "running":
            task = submitting.result()
            lab.wait(task, "running")
        else:
            task = eventually(
                lambda: next(
                    (each.stem for each in notes.glob("*.json") if moment in each.read_text()), None
                ),
                every=0.001,
            )
        kill_supervisor(lab, task)
        assert submitting.result() == task
    for host in lab.hosts:
        host.exec(["touch", "/tmp/go"])
    assert lab.wait(task, "completed", "failed", timeout=90)["status"] == "completed"
    assert "node00" in lab.flow("logs", task).stdout
    assert lab.held() == {}
    assert all(left_on(host) == [] for host in lab.hosts)


def test_a_task_cancelled_after_its_supervisor_was_killed_holds_nothing(lab: Lab) -> None:
    task = lab.submit("-N", "2", "--", "sh", "-c", WAIT)
    note = lab.home / "ssh" / "tasks" / f"{task}.json"
    eventually(lambda: note.exists(), every=0.001)
    kill_supervisor(lab, task)
    lab.flow("cancel", task)
    lab.wait(task, "cancelled", timeout=90)
    assert lab.held() == {}
    assert all(left_on(host) == [] for host in lab.hosts)


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_a_host_that_dies_does_not_hold_the_task_up(
    hosts: Cluster, flow_home: Path, how: str
) -> None:
    lab = Lab(hosts, flow_home, hosts[:3])
    task = lab.submit("-N", "2", "--", "sh", "-c", WAIT)
    lab.wait(task, "running")
    getattr(hosts[1], how)()
    died = time.monotonic()
    found = lab.wait(task, "failed", timeout=90)
    print(f"{how}: final after {time.monotonic() - died:.1f} s: {found['reason']}")
    assert "node 1" in found["reason"]
    assert lab.held() == {"node01": "unreachable"}
    hosts[1].start()
    eventually(lambda: lab.held() == {}, every=0.5)


@pytest.mark.timeout(300)
def test_a_host_that_dies_is_replaced_from_the_pool(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:3])
    command = f"echo $FLOW_ATTEMPT on $(hostname); {WAIT}"
    task = lab.submit("-N", "2", "--retries", "1", "--", "sh", "-c", command)
    lab.wait(task, "running")
    hosts[1].kill()
    eventually(lambda: "node02" in lab.given(task), timeout=90, every=0.1)
    assert "node02" in lab.held()
    for host in (hosts[0], hosts[2]):
        host.exec(["touch", "/tmp/go"])
    assert lab.wait(task, "completed", "failed", timeout=90)["status"] == "completed"
    assert "2 on node02" in lab.flow("logs", task).stdout
    hosts[1].start()
    assert lab.held() == {}


def test_gc_ends_what_belongs_to_no_live_task(lab: Lab) -> None:
    task = lab.submit("-N", "1", "--", "sh", "-c", WAIT)
    lab.wait(task, "running")
    kill_supervisor(lab, task)
    # The store is lost, and so are the files; the leases still say whose they are.
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (lab.home / name).unlink(missing_ok=True)
    shutil.rmtree(lab.home / "tasks")
    said = lab.flow("gc").stdout
    assert f"of task {task}, which the store does not know: left alone" in said
    assert lab.held() != {}
    said = lab.flow("gc", "--yes").stdout
    assert f"of task {task}, which the store does not know: ended" in said
    assert lab.held() == {}
    assert left_on(lab.hosts[0]) == []


def test_the_holder_killed_by_somebody_takes_the_task_with_it(
    hosts: Cluster, flow_home: Path
) -> None:
    lab = Lab(hosts, flow_home, hosts[:2])
    task = lab.submit("-N", "1", "--", "sh", "-c", WAIT)
    lab.wait(task, "running")
    log = "/root/.flowlite-node/holder-node00.log"
    script = f'for d in /proc/[0-9]*; do [ "$(readlink $d/fd/2)" = {log} ] && basename $d; done'
    holder = min(int(pid) for pid in hosts[0].exec(["sh", "-c", script]).stdout.split())
    hosts[0].exec(["kill", "-9", str(holder)])
    found = lab.wait(task, "failed", timeout=90)
    assert "node 0" in found["reason"]
    assert lab.held() == {}
    assert left_on(hosts[0]) == []
