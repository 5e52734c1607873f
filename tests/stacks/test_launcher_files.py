"""The files that launchers read in manual mode, and that they are on every node."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from flowlite.node.leader_run import ray_cluster
from flowlite.node.system import node_facts
from flowlite.node.worker import launcher_files
from flowlite.node.worker.environment import WorkerPlace, worker_environment
from tests.gangs import shell, submit

SEAT = WorkerPlace(
    task="t1",
    name="n",
    attempt=1,
    mode="manual",
    node_rank=1,
    local_rank=0,
    processes_per_node=8,
    addresses=("10.0.0.7", "10.0.0.2"),
    master_addr="10.0.0.7",
    master_port=29501,
    launcher_files="/node/a1",
)


def test_the_hostfile_has_every_node_by_rank() -> None:
    assert launcher_files.hostfile(SEAT.addresses, 8) == "10.0.0.7 slots=8\n10.0.0.2 slots=8\n"


def test_nodes_of_one_machine_get_addresses_apart() -> None:
    many = ["127.0.0.1", "127.0.0.3", "127.0.0.1", *["127.0.0.1"] * 300]
    names = [line.split()[0] for line in launcher_files.hostfile(many, 1).splitlines()]
    assert names[:4] == ["127.0.0.1", "127.0.0.3", "127.0.0.2", "127.0.0.4"]
    assert len(set(names)) == len(many)
    assert all(re.fullmatch(r"127(\.\d{1,3}){3}", name) for name in names)
    assert not {"127.0.0.0", "127.0.0.255"} & set(names[:200])


def test_the_users_precision_is_in_the_configuration_of_accelerate() -> None:
    environment = worker_environment({}, SEAT, {"ACCELERATE_MIXED_PRECISION": "bf16"})
    found = yaml.safe_load(launcher_files.accelerate_config(environment, 8))
    assert found["mixed_precision"] == "bf16"


def test_the_configuration_of_accelerate() -> None:
    environment = worker_environment({}, SEAT)
    found = yaml.safe_load(launcher_files.accelerate_config(environment, 8))
    assert found == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": 2,
        "machine_rank": 1,
        "num_processes": 16,
        "main_process_ip": "10.0.0.7",
        "main_process_port": 29501,
        "rdzv_backend": "static",
        "same_network": True,
        "gpu_ids": "all",
        "mixed_precision": "no",
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }


@pytest.mark.parametrize("only_cpu", [True, False])
def test_one_process_is_no_gang(only_cpu: bool) -> None:
    alone = SEAT._replace(
        addresses=("10.0.0.7",), node_rank=0, processes_per_node=1, only_cpu=only_cpu
    )
    found = yaml.safe_load(launcher_files.accelerate_config(worker_environment({}, alone), 1))
    assert (found["distributed_type"], found["num_processes"]) == ("NO", 1)


def test_a_node_with_an_accelerator_is_no_cpu_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "card").mkdir()
    monkeypatch.setattr(node_facts, "NVIDIA", tmp_path)
    assert not node_facts.only_cpu()
    assert node_facts.only_cpu("")
    monkeypatch.setattr(node_facts, "_OTHERS", ("null",))
    assert not node_facts.only_cpu("")


def test_gpus_that_the_driver_does_not_list_are_asked_of_its_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_facts, "NVIDIA", tmp_path / "hidden")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool = tmp_path / "nvidia-smi"
    for script, wanted in (
        ("exit 9", {"count": 0, "kind": None}),
        (
            "printf 'NVIDIA H200\\nNVIDIA H200\\nNVIDIA H200\\n'",
            {"count": 3, "kind": "NVIDIA H200"},
        ),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        assert node_facts.gpus() == wanted
    assert node_facts.gpus("0,2")["count"] == 2
    asked = SimpleNamespace(gpus={"count": 3}, visible_gpus="0,1,2")
    assert ray_cluster.gpus_of(SimpleNamespace(config=asked)) == 3  # type: ignore[arg-type]


def test_they_are_on_every_node(flow_home: Path) -> None:
    told = 'cat "$FLOW_HOSTFILE"; grep -e machine_rank -e process "$FLOW_ACCELERATE_CONFIG"; '
    gang = submit(
        flow_home,
        shell(f"{told} echo $PET_NPROC_PER_NODE $NODE_RANK $MASTER_PORT $RANK"),
        nodes=2,
        distributed_mode="manual",
        processes_per_node=3,
    )
    gang.end()
    for node in range(2):
        hosts, config, last = _parts(gang.output(node))
        port = last.split()[2]
        assert last.split() == ["3", str(node), port]
        assert hosts == ["127.0.0.1 slots=3", "127.0.0.2 slots=3"]
        assert config == [
            f"machine_rank: {node}",
            "num_processes: 6",
            "main_process_ip: '127.0.0.1'",
            f"main_process_port: {port}",
        ]


def test_other_modes_have_none(flow_home: Path) -> None:
    gang = submit(flow_home, shell('echo "[$FLOW_HOSTFILE$FLOW_ACCELERATE_CONFIG]"'))
    gang.end()
    assert gang.output(0) == "[]\n"


def _parts(text: str) -> tuple[list[str], list[str], str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[:2], lines[2:-1], lines[-1]


def test_a_user_who_names_another_place_is_heard() -> None:
    made = worker_environment(dict(os.environ), SEAT, {"FLOW_HOSTFILE": "/mine"})
    assert made["FLOW_HOSTFILE"] == "/mine"
    assert made["FLOW_ACCELERATE_CONFIG"] == "/node/a1/accelerate.yaml"
