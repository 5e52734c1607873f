"""What a supervisor that was started ahead of its task does first: agents of this machine are forked from a courier."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite import FlowApp
from flowlite.node.system import processes
from flowlite.supervise.record import process_identity
from tests.helpers import eventually, put_agent

pytestmark = pytest.mark.both


def agents_of(home: Path, task_id: str, attempt: int) -> list[int]:
    """The process ids of the agents of an attempt with two nodes, when both are there."""

    def found() -> list[int]:
        files = (home / "tasks" / task_id / "nodes").glob(f"*/a{attempt}/agent.pid")
        pids = [int(json.loads(file.read_text())["pid"]) for file in files]
        return pids if len(pids) == 2 else []

    return eventually(found, what="two agents")


def was_forked(agent: int) -> bool:
    """Whether an agent was forked: it then shows what it was given as its environment, and no more."""
    environment = Path(f"/proc/{agent}/environ").read_bytes()
    assert b"FLOW_TASK_ID=" in environment
    return b"\0PATH=" not in b"\0" + environment


def waiting_for(file: Path) -> Callable[[], None]:
    """Returns a function that ends when a file is there."""

    def wait() -> None:
        import time

        while not file.exists():
            time.sleep(0.01)

    return wait


def test_agents_of_each_attempt_are_forked(flow_home: Path, tmp_path: Path) -> None:
    put_agent(flow_home)
    go_on = tmp_path / "go-on"
    app = FlowApp(num_instances=2, retries=1)
    task = app.function(waiting_for(go_on)).spawn()
    first = agents_of(flow_home, task.id, 1)
    assert all(map(was_forked, first))
    os.kill(first[0], signal.SIGKILL)
    second = agents_of(flow_home, task.id, 2)
    assert all(map(was_forked, second))
    go_on.touch()
    task.result()


def is_courier(pid: int) -> bool:
    """False, too, for a process that has ended since it was listed."""
    with suppress(OSError):
        return b"courier" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_supervisor_that_was_killed_leaves_no_courier(flow_home: Path, tmp_path: Path) -> None:
    put_agent(flow_home)
    go_on = tmp_path / "go-on"
    task = FlowApp(num_instances=2).function(waiting_for(go_on)).spawn()
    agents_of(flow_home, task.id, 1)
    supervisor = process_identity.noted_supervisor(flow_home, task.id)
    assert supervisor is not None
    couriers = list(filter(is_courier, processes.descendants([supervisor.pid])))
    assert len(couriers) == 1
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(lambda: not processes.is_alive(couriers[0]), what="the end of the courier")
    go_on.touch()
    task.result()
