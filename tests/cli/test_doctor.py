"""`flow doctor` and `flow top` on a gang that hangs: rank 5 sleeps instead of joining an all-reduce."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.api.client import Flow as Client
from flowlite.api.task import Task
from flowlite.cli.commands import doctor
from flowlite.cli.commands.doctor import _measure_links
from flowlite.connect.values import Completed
from flowlite.errors import NodeUnreachable
from tests.cli.conftest import Flow
from tests.helpers import assert_no_process_left, eventually
from tests.tasks_made_by_hand import HandMade

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
RECEIVES = """
import sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
sys.stdout.write("joins\\n")
sys.stdout.flush()
dist.recv(torch.ones(1), src=1 - dist.get_rank())
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


@pytest.mark.slow
def test_a_deadlock_of_receives_under_variables_of_the_command_itself(
    started: Callable[..., Task[Any]], flow: Flow
) -> None:
    exports = "export NCCL_ALGO=A$FLOW_NODE_RANK SEED=$FLOW_NODE_RANK; exec python script.py"
    task = started(RECEIVES, "--", "sh", "-c", exports)

    def found() -> Any:
        ran = flow("doctor", task.id, "--no-links")
        return ran.out if "waiting in recv" in ran.out else None

    shown = eventually(found, what="both wait in recv")
    assert "\nall ranks wait in recv and none of them sends: a deadlock of the program" in shown
    assert "\nNCCL_ALGO differs: A0 on node 0, A1 on node 1\n" in shown
    assert "\n- NCCL_ALGO is not the same on all nodes" in shown
    assert "\n- SEED is not the same on all nodes" in shown
    # It is no question of the transport, least of all of NCCL's.
    assert "NCCL_DEBUG" not in shown


class Answers:
    """Stands for the nodes of a task, each of which answers with a text or fails."""

    def __init__(self, *nodes: str | Exception) -> None:
        self.nodes = [type("Node", (), {"address": "10.0.0.1", "rank": n}) for n in range(9)]
        self._answers = nodes
        self.asked: list[int] = []

    @contextmanager
    def reach(self, node: int) -> Iterator[Any]:
        self.asked.append(node)
        answer = self._answers[node]
        if isinstance(answer, Exception):
            raise answer
        done = SimpleNamespace(stdout=answer.encode())
        yield SimpleNamespace(program=(), connection=SimpleNamespace(run=lambda *_, **__: done))


SERVES = '{"port": 1, "round_trip": 0.001, "bytes_per_second": 1e9}'


def test_a_link_whose_nodes_do_not_answer_is_not_measured_and_not_accused() -> None:
    task = Answers(SERVES, NodeUnreachable("no answer within 10 s"), SERVES)
    links = _measure_links(task, [0, 1, 2])  # type: ignore[arg-type]

    (why,) = {link["not_measured"] for link in links if "not_measured" in link}
    assert why == "node 1: no answer within 10 s"
    assert [(each["from"], each["to"]) for each in links if "round_trip" in each] == [
        (0, 2),
        (2, 0),
    ]
    # It was waited for once.
    assert task.asked.count(1) == 1


@pytest.mark.parametrize(
    "answer",
    [{"time": "12"}, {"time": None}, {"load": ["a"], "cores": 1}, {"load": [], "cores": 1}],
)
def test_an_answer_that_could_not_be_shown_is_invalid(answer: dict[str, Any]) -> None:
    there = SimpleNamespace(
        program=("python",),
        home="/",
        connection=SimpleNamespace(
            run=lambda *_, **__: Completed(0, json.dumps(answer).encode(), b"")
        ),
    )
    task: Any = SimpleNamespace(reach=lambda node: nullcontext(there))
    assert "its program answers nonsense" in doctor._look(task, 0)["error"]


def test_ranks_of_nodes_that_are_not_there_yet_have_not_started(flow: Flow) -> None:
    found = flow("doctor", HandMade("early").id, "--json").json

    assert "is not there yet" in found["nodes"][0]["error"]
    assert (found["missing"], found["unknown"], found["verdict"]) == ([0, 1, 2, 3], [], "")


@pytest.mark.parametrize("command", ["doctor", "top"])
def test_a_task_that_has_ended_has_no_nodes(command: str, flow: Flow) -> None:
    assert flow("run", "--", "true").code == 0
    ran = flow(command, "true")

    assert ran.code == 3
    assert "has ended (completed)" in ran.err
