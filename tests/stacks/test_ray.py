"""`distributed_mode="ray"` with Ray as it is: a cluster of two nodes on this machine.

Ray gives up on a machine where its processes take more than 15 s to start, so that no other test runs beside these; and
since all others wait meanwhile, two clusters at a time are for `pytest -m hours`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from flowlite.node.system import runtime_dir
from tests.gangs import Gang, submit
from tests.helpers import eventually, process_alive, processes_of
from tests.stacks.environments import trainers

SECONDS = 300.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = """
import json, os
from flowlite import FlowApp

app = FlowApp()

def loop():
    import torch, torch.distributed as dist
    from ray import train
    each = torch.ones(1) * 10 ** dist.get_rank()
    dist.all_reduce(each)
    told = [os.environ["FLOW_NODE_RANK"], dist.get_rank(), dist.get_world_size(), each.item()]
    with open(f"{os.environ['RESULTS']}/rank{dist.get_rank()}.json", "w") as file:
        json.dump(told, file)
    train.report({})

@app.function(num_instances=2, processes_per_node=2, distributed_mode="ray")
def train() -> list:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    ray.init()
    nodes = [(node["Alive"], node["Resources"]["CPU"]) for node in ray.nodes()]
    trainer = TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=4, placement_strategy="SPREAD"),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=os.environ["RESULTS"]),
    )
    trainer.fit()
    return nodes

if __name__ == "__main__":
    print(json.dumps(train.remote()))
"""
HOLD = """
import os, ray, time
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Actor:
    def pid(self):
        return os.getpid(), os.environ["FLOW_NODE_RANK"]

actors = [Actor.remote() for _ in range(4)]
found = ray.get([each.pid.remote() for each in actors])
os.write(1, (" ".join(str(pid) for pid, _ in found) + f" {len(set(node for _, node in found))}\\n").encode())
while not os.path.exists(os.environ["FLOW_HOME"] + "/go"):
    time.sleep(0.05)
"""


def left_behind() -> list[Path]:
    """Directories of Ray that were not removed."""
    return list(Path(runtime_dir.find()).glob("ray-*"))


@pytest.mark.hours
@pytest.mark.heavy
def test_ray_train_runs_two_workers_on_each_of_two_nodes(flow_home: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TRAIN)
    results = tmp_path / "results"
    results.mkdir()
    environment = {**os.environ, "RESULTS": str(results)}
    done = subprocess.run(
        [trainers(), program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    nodes = json.loads(done.stdout.splitlines()[-1])
    assert [alive for alive, _ in nodes] == [True, True]
    assert all(cpus >= 2 for _, cpus in nodes)
    told = [json.loads((results / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert sorted(node for node, *_ in told) == ["0", "0", "1", "1"]
    assert [rest for _, *rest in told] == [[rank, 4, 1111.0] for rank in range(4)]
    assert left_behind() == []


@pytest.mark.hours
def test_two_clusters_stand_side_by_side_and_end_whatever_is_killed(
    flow_home: Path, tmp_path: Path
) -> None:
    hold = tmp_path / "hold.py"
    hold.write_text(HOLD)
    command = [str(trainers()), str(hold)]
    first = _start(flow_home, command)
    second = _start(flow_home, command)
    for each, end in ((first, "agent"), (second, "worker")):
        actors = _actors(each)
        mine = [pid for pid in processes_of(each.id) if _is_ray(pid)]
        assert len(mine) >= 5
        if end == "agent":
            os.kill(each.agent(1), signal.SIGKILL)
        else:
            os.kill(_follower(each), signal.SIGKILL)
        each.end("failed", timeout=SECONDS)
        assert not any(map(process_alive, [*actors, *mine]))
        if each is first:
            assert all(map(process_alive, _actors(second)))


def test_a_python_without_ray_is_named_before_go(flow_home: Path) -> None:
    failed = submit(flow_home, ["true"], nodes=2, distributed_mode="ray")
    record = failed.end("failed", timeout=SECONDS)
    assert "needs Ray, and the Python of this node" in record.reason
    assert 'dependencies=["ray[train]"]' in record.reason
    assert "running" not in [kind for kind, _ in failed.events]


def _start(home: Path, command: list[str]) -> Gang:
    python = os.environ["PATH"]
    begun = submit(
        home,
        command,
        nodes=2,
        distributed_mode="ray",
        processes_per_node=2,
        environment={"PATH": f"{trainers().parent}:{python}"},
    )
    eventually(lambda: _actors(begun) or begun.record.final, timeout=SECONDS)
    assert not begun.record.final, begun.story()
    return begun


def _actors(of: Gang) -> list[int]:
    found = list(of.paths.directory.glob("nodes/*/a1/r0.out"))
    words = found[0].read_text().split() if found else []
    if len(words) < 5:
        return []
    assert words[-1] == "2", "all actors are on one node"
    return [int(word) for word in words[:4]]


def _follower(of: Gang) -> int:
    """The worker of node 1."""
    (note,) = of.paths.directory.glob("nodes/*/a1/r1.pid")
    said = note.read_text()
    return int(json.loads(said)["pid"] if said.startswith("{") else said.split()[0])


def _is_ray(pid: int) -> bool:
    try:
        return b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
