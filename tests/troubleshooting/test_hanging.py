"""`flow doctor` on gangs that hang or train apart: what stands out, in one sentence each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.api.client import Flow as Client
from flowlite.api.task import Task
from flowlite.diagnosis.findings import findings
from flowlite.node.inspect import torch_probe
from tests.cli.conftest import Flow, flow  # noqa: F401
from tests.helpers import eventually
from tests.providers.lab import Lab

app = FlowApp()


def node(
    *ranks: int,
    variables: dict[str, str] | None = None,
    backends: tuple[str, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    same = {"state": "S", "torch": True, "group": True, "backends": list(backends)}
    workers = [{"rank": rank, **same, "variables": variables or {}} for rank in ranks]
    return {"workers": workers, "gpus": [], **more}


def link(a: int, b: int, gigabits: float) -> dict[str, Any]:
    return {"from": a, "to": b, "round_trip": 1e-4, "bytes_per_second": gigabits * 1e9 / 8}


def cards(*percent: int) -> list[dict[str, Any]]:
    return [{"index": index, "utilisation": used} for index, used in enumerate(percent)]


# What nodes say


def test_nothing_stands_out_where_all_is_well() -> None:
    links = [link(0, 1, 10), link(1, 0, 9), link(1, 2, 8)]
    assert findings([node(0, 1), node(2, 3)], links, ["NCCL INFO Connected all rings"]) == []


def test_a_link_that_does_not_work_is_named() -> None:
    links = [link(0, 1, 10), {"from": 1, "to": 0, "error": "timed out"}]
    (said,) = findings([node(0), node(1)], links, all_wait=True)
    assert said.startswith("node 1 cannot talk to node 0: timed out; allow TCP")


def test_a_link_that_could_not_be_measured_is_not_accused() -> None:
    links = [{"from": 0, "to": 1, "not_measured": "node 1: no answer"}, link(1, 0, 9)]
    assert findings([node(0), node(1)], links) == []


def test_a_link_that_is_far_slower_than_the_others_is_named() -> None:
    links = [link(0, 1, 100), link(1, 2, 90), link(2, 0, 8)]
    (said,) = findings([node(0), node(1), node(2)], links)
    assert said.startswith("node 2 -> node 0 is slow: 8.0 Gbit/s where links have 90.0")


def test_ranks_that_train_alone_are_named() -> None:
    alone = node(2, 3)
    for worker in alone["workers"]:
        worker["group"] = False
    (said,) = findings([node(0, 1), alone], [])
    assert said.startswith("ranks 2-3 have torch loaded and no connection to MASTER_PORT")
    assert "ACCELERATE_USE_CPU=true" in said
    # Without torch, or where it cannot be seen, nothing is said.
    for worker in alone["workers"]:
        worker["torch"] = False
    assert findings([node(0, 1), alone], []) == []


def test_a_rank_that_waits_in_the_kernel_is_named() -> None:
    stuck = node(4)
    stuck["workers"][0]["state"] = "D"
    (said,) = findings([node(0), stuck], [])
    assert said.startswith("node 1: rank 4 waits for a disk, a network file system or a device")


def test_gpus_that_do_nothing_while_others_work_are_named() -> None:
    nodes = [node(0, gpus=cards(97, 99)), node(1, gpus=cards(98, 0))]
    (said,) = findings(nodes, [])
    assert said.startswith("GPU 1 of node 1 is idle (0 %) while 3 others work")
    assert findings([node(0, gpus=cards(0, 0, 97))], []) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PYTHONHASHSEED", "ranks draw other numbers"),
        ("PL_GLOBAL_SEED", "ranks draw other numbers"),
        ("NCCL_SOCKET_IFNAME", "NCCL may hang or fail"),
        ("NCCL_IB_DISABLE", "NCCL may hang or fail"),
    ],
)
def test_variables_that_must_agree_and_do_not_are_named(name: str, why: str) -> None:
    odd = [node(0, variables={name: "1"}), node(1, variables={name: "2"})]
    assert findings(odd, [])[0].startswith(f"{name} is not the same on all nodes: {why}")
    assert findings([node(0, variables={name: "1"}), node(1)], []) != []
    assert findings([odd[0], odd[0]], []) == []


def test_variables_that_differ_between_ranks_of_one_node_are_named() -> None:
    odd = node(0, 1, variables={"SEED": "1"})
    odd["workers"][1]["variables"] = {"SEED": "2"}
    assert findings([odd], [])[0].startswith("SEED is not the same on all ranks: ranks draw other")


def test_where_all_wait_and_the_links_are_well_the_next_step_is_said() -> None:
    nodes = [node(0, variables={"NCCL_SOCKET_IFNAME": "eth0"}, gpus=cards(99))]
    said = findings([nodes[0], nodes[0]], [link(0, 1, 9)], all_wait=True)
    assert len(said) == 1
    assert "NCCL uses the interface eth0" in said[0]
    assert "-e NCCL_DEBUG=INFO" in said[0]
    told = node(0, variables={"NCCL_DEBUG": "INFO"}, gpus=cards(99))
    assert findings([told, told], [link(0, 1, 9)], all_wait=True) == []


@pytest.mark.parametrize(
    "seen",
    [node(0, backends=("gloo",), gpus=cards(0)), node(0, variables={"NCCL_SOCKET_IFNAME": "lo"})],
    ids=["gloo", "no GPUs"],
)
def test_nccl_is_not_named_to_ranks_that_do_not_use_it(seen: dict[str, Any]) -> None:
    (said,) = findings([seen, seen], [link(0, 1, 9)], all_wait=True)
    assert "NCCL" not in said
    assert "-e TORCH_DISTRIBUTED_DEBUG=DETAIL" in said
    told = node(0, variables={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert findings([told, told], [link(0, 1, 9)], all_wait=True) == []


def test_ranks_that_use_nccl_get_its_advice() -> None:
    seen = node(0, backends=("gloo", "nccl"))
    (said,) = findings([seen, seen], [], all_wait=True)
    assert "-e NCCL_DEBUG=INFO" in said


def test_what_the_output_says_is_read() -> None:
    line = "[Node 1] NCCL: Connection timeout to 10.0.1.5:29500"
    (said,) = findings([node(0)], [], [line])
    assert said.startswith("the output says so: a rank did not come to a collective")


def test_variables_of_our_own_that_differ_by_rank_are_left_out() -> None:
    shown = torch_probe.telling(
        {"HOROVOD_RANK": "1", "NCCL_DEBUG": "INFO", "HOME": "/", "MY_TOKEN": "x"}
    )
    assert shown == {"NCCL_DEBUG": "INFO"}


def test_ranks_under_mpi_need_no_connection_to_the_master_port() -> None:
    variables = {"MASTER_PORT": "1", "WORLD_SIZE": "2"}
    assert torch_probe.of_process(os.getpid(), variables)["group"] is False
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    under_mpi = {**variables, **{f"OMPI_COMM_WORLD_{name}": "0" for name in names}}
    assert torch_probe.of_process(os.getpid(), under_mpi)["group"] is None


def test_the_backend_of_a_process_group_is_recognised() -> None:
    pytest.importorskip("torch")
    code = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "print('up', flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        # A thread gives itself its name, once it runs.
        eventually(lambda: torch_probe.backends(process.pid) == ["gloo"])
        process.communicate(b"\n")


# A real gang


@app.function(num_instances=2)
def trains_alone_then_together(flag: str) -> None:
    import time

    import torch
    import torch.distributed as dist

    print("Connection timeout to 10.0.1.5:29500", flush=True)
    while not Path(flag).exists():
        time.sleep(0.05)
    dist.init_process_group("gloo")
    print("together", flush=True)
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


@pytest.fixture
def gang(flow_home: Path, tmp_path: Path) -> Iterator[Task[Any]]:
    pytest.importorskip("torch")
    task = trains_alone_then_together.spawn(str(tmp_path / "flag"))
    yield task
    task.cancel()
    task.wait(90)


def test_a_gang_without_a_process_group_is_told_from_one_with_it(
    gang: Task[Any], flow: Flow, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    eventually(lambda: str(gang.logs()).count("timeout") == 2)
    told = flow("doctor", gang.id, "--no-links", "--json").json["findings"]
    assert any(text.startswith("ranks 0-1 have torch loaded and no connection") for text in told)
    assert any(text.startswith("the output says so: a rank did not come") for text in told)
    (tmp_path / "flag").touch()
    eventually(lambda: str(gang.logs()).count("together") == 2)
    ran = flow("doctor", gang.id, "--no-links")
    assert "no connection to MASTER_PORT" not in ran.out
    assert "- the output says so: a rank did not come to a collective" in ran.out


@app.function(num_instances=2, processes_per_node=2)
def waits_for_rank_0() -> None:
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    print("together", flush=True)
    if dist.get_rank() == 0:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


@pytest.mark.timeout(300)
def test_a_node_that_cannot_be_reached_is_named_beside_the_rank_that_is_waited_for(
    hosts: Any, flow_home: Path
) -> None:
    lab = Lab(hosts, flow_home)
    target = f"{__file__}::waits_for_rank_0"
    task = lab.submit("--name", "waits", target)
    eventually(lambda: lab.flow("logs", task).stdout.count("together") == 4, timeout=90, every=0.5)
    at = lab.flow("ssh", task, "--node", "1", "-c", "hostname").stdout.strip()
    host = next(each for each in hosts if each.name == at)
    host.pause()
    try:
        found = lab.json("doctor", task)
    finally:
        host.resume()
        lab.flow("cancel", task)
    assert (found["missing"], found["unknown"], found["waited_for"]) == ([], [2, 3], [0])
    assert found["verdict"].startswith(
        "node 1 does not answer, so ranks 2-3 are unknown; others wait in all_reduce for rank 0: rank 0 (node 0) is at"
    )
    # One node is left, which has no links to nodes that answer.
    assert found["links"] == []
    assert not any("cannot talk" in text for text in found["findings"])


def test_the_warnings_of_the_start_are_shown_again(flow: Flow, flow_home: Path) -> None:  # noqa: F811
    from tests.tasks_made_by_hand import HandMade

    made = HandMade("old")
    made.store.add_event(made.id, "warning", "node 1 has torch 2.4, node 0 has torch 2.5", {})
    from flowlite.cli.commands.doctor import _findings
    from flowlite.diagnosis.hang import diagnose

    task = Client().get_task(made.id)
    assert _findings(task, [], [], diagnose([], 0)) == [
        "node 1 has torch 2.4, node 0 has torch 2.5"
    ]
