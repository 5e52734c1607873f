"""What would go wrong later, found before the first worker starts: nodes that differ, and nodes that lack something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowlite import FlowApp, TaskConfig
from flowlite.api.client import Flow
from flowlite.node.preflight import network_interfaces
from flowlite.node.protocol import messages as m
from flowlite.node.protocol.messages import GangSettings
from flowlite.node.rendezvous import consistency
from flowlite.node.rendezvous.actions import LeaderTime, Peer, ProveMaster, Send
from flowlite.node.rendezvous.leader import Rendezvous
from flowlite.node.system import library_versions, node_facts

GANG = GangSettings(task="t", attempt=1, roster=("a", "b", "c"), processes_per_node=8)
GIB = 2**30
H100 = {"count": 8, "kind": "NVIDIA H100 80GB HBM3"}
SAME = {"gpus": H100, "python_minor": "3.11", "code": "c0de", "agent": "a"}


def joined(**odd: Any) -> list[str]:
    """What keeps three nodes apart of which the last one is odd."""
    return consistency.disagreements(GANG, [SAME, SAME, {**SAME, **odd}])


def ready(*each: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    nodes = [*each, *[each[0]] * (3 - len(each))]
    return consistency.differences(GANG, nodes), consistency.oddities(GANG, nodes)


# Nodes that differ


def test_another_version_of_the_code_on_one_node() -> None:
    (said,) = joined(code="0ther")
    assert said.startswith("node 2 (c) has code 0ther, 2 other nodes have code c0de")


def test_another_kind_or_number_of_gpus_on_one_node() -> None:
    (said,) = joined(gpus={"count": 4, "kind": "NVIDIA H100 80GB HBM3"})
    assert "node 2 (c) has 4 × NVIDIA H100 80GB HBM3, 2 other nodes have 8 ×" in said


def test_gpus_of_another_size_on_one_node() -> None:
    big, small = [[0, 80 * GIB]] * 8, [[0, 80 * GIB]] * 7 + [[0, 40 * GIB]]
    (said,), _ = ready({"gpu_memory": big}, {"gpu_memory": small})
    assert "node 1 (b) has GPUs of 42.9 GB, 2 other nodes have GPUs of 85.9 GB" in said
    assert "run out of memory there" in said


@pytest.mark.parametrize("other", [[[0, 80 * GIB - GIB]] * 8, None])
def test_gpus_that_differ_by_what_drivers_do_are_of_one_size(other: Any) -> None:
    assert ready({"gpu_memory": [[0, 80 * GIB]] * 8}, {"gpu_memory": other}) == ([], [])


def test_no_text_is_made_of_what_is_the_same_on_all_nodes() -> None:
    """All nodes of a gang wait while the leader compares thousands of long reports."""
    work: list[str] = []

    class Word(str):
        def __format__(self, spec: str) -> str:
            work.append("format")
            return super().__format__(spec)

        def __hash__(self) -> int:
            work.append("hash")
            return super().__hash__()

    def report(version: str = "2.13.0") -> dict[str, Any]:
        return {
            "packages": [Word(f"package-{number}==1.0") for number in range(100)],
            "versions": {"torch": Word(version), "numpy": Word("2.1")},
            "gpu_memory": [[0, 80 * GIB]] * 8,
            "talks": True,
        }

    assert ready(report(), report(), report()) == ([], [])
    assert work == []
    (said,), _ = ready(report(), report("2.4.1"), report())
    assert "node 1 (b) has torch 2.4.1" in said
    assert work


def test_a_gpu_that_somebody_else_fills() -> None:
    stops, says = ready(
        {"gpu_memory": [[0, 80 * GIB], [30 * GIB, 80 * GIB]]}, {"gpu_memory": [[0, 80 * GIB]] * 2}
    )
    assert not stops
    assert says[0].startswith("GPU 1 of node 0 (a) is in use: 32.2 GB of 85.9 GB are taken before")


@pytest.mark.parametrize("package", ["torch", "nvidia-nccl", "nvidia-cuda-runtime"])
def test_another_version_of_what_ranks_talk_with(package: str) -> None:
    usual = {"versions": {package: "2.13.0"}, "talks": True}
    (said,), _ = ready(usual, {**usual, "versions": {package: "2.4.1"}})
    assert f"node 1 (b) has {package} 2.4.1, 2 other nodes have {package} 2.13.0" in said
    # A command may or may not use it.
    stops, (said,) = ready({**usual, "talks": False}, {"versions": {}, "talks": False})
    assert not stops
    assert f"node 1 (b) has no {package}" in said


def test_another_version_of_what_ranks_compute_with_is_said() -> None:
    stops, (said,) = ready(
        {"versions": {"transformers": "5.1"}, "talks": True},
        {"versions": {"transformers": "4.9"}, "talks": True},
    )
    assert not stops
    assert "node 1 (b) has transformers 4.9" in said
    assert "dependencies=[…]" in said


def test_versions_are_read_without_importing_anything(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in (
        "torch-2.13.0+cu130.dist-info",
        "nvidia_nccl_cu13-2.28.9.dist-info",
        "left-1.0.dist-info",
    ):
        (packages / name).mkdir(parents=True)
    (tmp_path / "lib" / "python3.12" / "site-packages" / "torch-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "first" / "numpy-2.0.dist-info").mkdir(parents=True)
    environment = {"PYTHONPATH": str(tmp_path / "first"), "HOME": str(tmp_path)}
    assert library_versions.versions_of(f"{tmp_path}/bin/python", environment, "3.11") == {
        "numpy": "2.0",
        "torch": "2.13.0+cu130",
        "nvidia-nccl": "2.28.9",
    }


@pytest.mark.parametrize(
    ("call", "some", "talks"),
    [
        ({"kind": "command", "argv": ["hostname"]}, False, False),
        ({"kind": "command", "argv": ["sh", "-c", "torchrun train.py"]}, True, False),
        ({"kind": "command", "argv": ["/opt/env/bin/python3.11", "-m", "a.b"]}, True, False),
        ({"kind": "function", "imports": ["json"]}, False, False),
        ({"kind": "function", "imports": ["torch.distributed"]}, True, True),
    ],
)
def test_versions_count_only_where_they_are_used(call: Any, some: bool, talks: bool) -> None:
    wanted, sure = library_versions.relevant(call)
    assert (bool(wanted), sure) == (some, talks)


# Nodes that lack something


def test_fewer_gpus_than_asked_for() -> None:
    said = node_facts.wrong_gpus({"count": 8}, {"count": 0})
    assert said is not None
    assert said.startswith("8 GPUs were asked for and 0 are here")


def test_a_torch_that_knows_no_gpu_on_a_node_that_has_them() -> None:
    odd = {"versions": {"torch": "2.13.0+cpu"}, "gpu_memory": [[0, 80 * GIB]], "talks": True}
    _, says = ready(odd)
    assert (
        "node 0 (a) has GPUs, and torch 2.13.0+cpu, which knows none: training would run on"
        in says[0]
    )
    assert ready({**odd, "gpu_memory": None}) == ([], [])


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"shm_bytes": 64 * 2**20}, "/dev/shm of node 1 (b) has 67 MB: NCCL stops there with `unhandled system error`"),
        ({"infiniband": True, "memlock_bytes": 65536}, "may lock no more than 0 MB of memory"),
    ],
)  # fmt: skip
def test_a_node_on_which_nccl_will_fail(facts: Any, said: str) -> None:
    now = 1e9
    usual = {"clock": now, "shm_bytes": 64 * GIB, "memlock_bytes": None, "infiniband": True}
    assert consistency.warnings(GANG, 1, {**usual, "gpus": H100}, now) == []
    (found,) = consistency.warnings(GANG, 1, {**usual, "gpus": H100, **facts}, now)
    assert said in found
    # Without GPUs there is no NCCL.
    assert consistency.warnings(GANG, 1, {**usual, "gpus": {"count": 0}, **facts}, now) == []


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "ib0,eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", False),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", False),
        ("NCCL_SOCKET_IFNAME", "^eth,lo", True),
        ("NCCL_SOCKET_IFNAME", "ib0", True),
        ("GLOO_SOCKET_IFNAME", "eth0", False),
        ("GLOO_SOCKET_IFNAME", "eth", True),
    ],
)
def test_an_interface_that_a_node_does_not_have(name: str, value: str, wrong: bool) -> None:
    found = network_interfaces.wrong({name: value}, ["lo", "eth0"], nccl=True)
    assert (found is not None) == wrong
    if found is not None:
        assert f"{name}={value} fits no " in found
        assert "it has: " in found


def test_what_is_said_to_nccl_does_not_stop_a_rehearsal_without_gpus() -> None:
    assert (
        network_interfaces.wrong({"NCCL_SOCKET_IFNAME": "ib0"}, ["lo", "eth0"], nccl=False) is None
    )


@pytest.mark.parametrize(
    ("value", "cards", "doubt"),
    [
        ("mlx5", ["mlx5_0", "mlx5_1"], False),
        ("=mlx5_0:1", ["mlx5_0"], False),
        ("mlx4", ["mlx5_0"], True),
        ("mlx5", [], True),
    ],
)
def test_an_adapter_that_a_node_does_not_have_is_said(
    value: str, cards: list[str], doubt: bool
) -> None:
    found = network_interfaces.doubtful({"NCCL_IB_HCA": value}, cards)
    assert (found is not None) == doubt
    assert (
        network_interfaces.doubtful({"NCCL_IB_HCA": value, "NCCL_IB_DISABLE": "1"}, cards) is None
    )
    stops, says = ready({"doubt": found, "talks": False})
    assert not stops
    assert bool(says) == doubt


def test_a_gang_with_a_wrong_interface_does_not_start(flow_home: Path) -> None:
    config = TaskConfig(
        command=("true",), num_instances=2, environment={"GLOO_SOCKET_IFNAME": "ib7"}
    )
    task = Flow(notify=str).submit(config).wait(90)
    assert task.status == "failed"
    assert "GLOO_SOCKET_IFNAME=ib7 fits no interface of this node (it has: " in task.reason
    assert not list(task.logs())


# Nodes that come late


def moment(seconds: float) -> LeaderTime:
    return LeaderTime(steady=seconds, unix=1e9 + seconds)


def join(gang: Rendezvous, number: int) -> list[Any]:
    instance = GANG.roster[number]
    body = {
        "type": "join",
        "task": "t",
        "attempt": 1,
        "instance": instance,
        "incarnation": f"i{number}",
        "facts": SAME,
    }
    return gang.receive(number, Peer("member", instance, f"10.0.0.{number}"), body, moment(1))


def test_nobody_starts_before_all_nodes_are_there() -> None:
    gang = Rendezvous(GANG, moment(0))
    for number in (0, 1):
        actions = join(gang, number)
        assert not [a for a in actions if isinstance(a, ProveMaster)]
    gang.tick(moment(60))
    assert gang.phase == m.GATHERING
    assert [a for a in join(gang, 2) if isinstance(a, ProveMaster)]
    assert gang.phase == m.PREPARING
    told = [a.message for a in gang.master_proved(29500, moment(61)) if isinstance(a, Send)]
    assert {message["type"] for message in told} <= {"prepare", "event", "state"}


def test_a_node_that_does_not_come_is_named() -> None:
    gang = Rendezvous(GANG, moment(0))
    for number in (0, 2):
        join(gang, number)
    gang.tick(moment(GANG.join_timeout + 1))
    assert "node 1 (b)" in gang.reason


app = FlowApp()


@app.function(num_instances=2, processes_per_node=2)
def reads(path: str) -> str:
    return Path(path).read_text()


def test_data_that_is_not_on_the_node_is_named(flow_home: Path) -> None:
    error = reads.spawn("/data/laion/00000.tar").exception(60)
    assert isinstance(error, FileNotFoundError)
    note = "\n".join(error.__notes__)
    assert "/data/laion/00000.tar is not there on that node" in note
    assert "volumes= and mounts=" in note
