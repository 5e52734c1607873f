"""`flow doctor` and `flow top` on a gang that hangs: rank 5 sleeps instead of joining an all-reduce."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.client import Flow as Client
from flowlite.api.task import Task
from tests.cli.conftest import Flow
from tests.helpers import assert_no_process_left, eventually

HANGS = """
import time
from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=2, processes_per_node=4)
def train() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 5:
        print("rank 5 sleeps", flush=True)
        time.sleep(3600)
    values = torch.ones(4)
    print("joins", flush=True)
    dist.all_reduce(values)
    return float(values.sum())
"""


SCRIPT = """
import sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
sys.stdout.write("joins\\n")
sys.stdout.flush()
if dist.get_rank() == 1:
    time.sleep(3600)
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def hanging(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow
) -> Iterator[Task[Any]]:
    (tmp_path / "train.py").write_text(HANGS)
    monkeypatch.chdir(tmp_path)
    assert flow("run", "--detach", "train.py::train").code == 0
    (task,) = Client().list_tasks()
    eventually(
        lambda: len(str(task.logs()).splitlines()) == 8, timeout=90, what="all ranks are in place"
    )
    yield task
    task.cancel()
    task.wait(90)
    assert_no_process_left(task.id)


@pytest.mark.slow
def test_the_rank_that_everyone_waits_for_is_named(hanging: Task[Any], flow: Flow) -> None:
    def verdict() -> str:
        ran = flow("doctor", hanging.id)
        assert ran.code == 0, ran.err
        return ran.out if "everyone else waits in all_reduce for rank 5" in ran.out else ""

    shown = eventually(verdict, what="the verdict")
    assert re.search(r"rank 5 \(node 1\) is at train\.py:16 in train$", shown.rstrip())
    # The odd one comes first, the others are one group.
    assert shown.index("rank 5 (node 1)\n") < shown.index(
        "ranks 0-4, 6-7 (node 0-1), waiting in all_reduce"
    )
    assert re.search(r"node 0 -> node 1: [\d.]+ ms, [\d.]+ Gbit/s", shown)
    assert "GLOO_SOCKET_IFNAME=" in shown

    found = flow("doctor", hanging.id, "--json", "--no-links").json
    assert found["waited_for"] == [5]
    assert [group["ranks"] for group in found["groups"]] == [[5], [0, 1, 2, 3, 4, 6, 7]]
    assert found["groups"][1]["waits_in"] == "all_reduce"
    assert found["links"] == []

    top = flow("top", hanging.id, "--json").json["nodes"]
    assert [node["ranks"] for node in top] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(node["memory"] > 0 for node in top)
    table = flow("top", hanging.id).out.splitlines()
    assert table[0].split()[:2] == ["NODE", "GPU"]
    assert [line.split()[0] for line in table[1:]] == ["0", "1"]


@pytest.fixture
def started(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow
) -> Iterator[Callable[..., Task[Any]]]:
    """Starts a command with `script.py` on two nodes, and returns the task once both ranks have joined."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    tasks = []

    def start(script: str, *words: str) -> Task[Any]:
        (tmp_path / "script.py").write_text(script)
        assert flow("run", "--detach", "-N", "2", *words).code == 0
        (task,) = Client().list_tasks()
        tasks.append(task)
        eventually(lambda: str(task.logs()).count("joins") == 2, timeout=90, what="both joined")
        return task

    yield start
    for task in tasks:
        task.cancel()
        task.wait(90)
        assert_no_process_left(task.id)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--manual", "--", "torchrun", "script.py"),
        ("--", "sh", "-c", "python script.py; echo over"),
    ],
    ids=["torchrun with one process", "shell"],
)
def test_ranks_below_a_worker_are_found(
    started: Callable[..., Task[Any]], flow: Flow, words: tuple[str, ...]
) -> None:
    task = started(SCRIPT, *words)

    def names_rank_1() -> bool:
        verdict = flow("doctor", task.id, "--json", "--no-links").json["verdict"] or ""
        return str(verdict) == (
            "everyone else waits in all_reduce for rank 1: rank 1 (node 1) is at script.py:9 in <module>"
        )

    eventually(names_rank_1, what="the verdict")


@pytest.mark.parametrize("command", ["doctor", "top"])
def test_a_task_that_has_ended_has_no_nodes(command: str, flow: Flow) -> None:
    assert flow("run", "--", "true").code == 0
    ran = flow(command, "true")

    assert ran.code == 3
    assert "has ended (completed)" in ran.err
