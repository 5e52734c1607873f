"""Commands of guides, unmodified, once on each node: each forms the gang that flowlite has told it of."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stacks.environments import trainers

# Looked for, not imported: each process that collects tests would take more than a second for it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torchrun comes with torch (extra `dev`)",
)
SECONDS = 250

# What a trainer would look at, written as one piece: the processes of a launcher share a stream.
SEEN = """
import os
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK FLOW_NODE_RANK MASTER_ADDR MASTER_PORT".split()
os.write(1, f"{' '.join(os.environ[name] for name in names)} {os.environ['ACCELERATE_USE_CPU']}\\n".encode())
"""

GUIDES = {
    "OpenCLIP's guide": (
        "torchrun --nproc_per_node=2 --nnodes=2 --node_rank=$NODE_RANK "
        "--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT -m -- stack.train --logs here"
    ),
    # As `axolotl train config.yaml --launcher torchrun` calls it.
    "Axolotl's torchrun": "torchrun -m stack.train config.yaml",
    # As OpenMMLab's dist_train.sh, LLaMA-Factory and ms-swift call it.
    "torchrun with NNODES": (
        "torchrun --nnodes ${NNODES:-1} --node_rank ${NODE_RANK:-0} --nproc_per_node ${NPROC_PER_NODE:-1} "
        "--master_addr ${MASTER_ADDR:-127.0.0.1} --master_port ${MASTER_PORT:-29500} -m stack.train"
    ),
    # With `-- --rdzv_endpoint=… --rdzv_id=…`; the backend is its own addition.
    "Axolotl's torchrun, dynamic": (
        "torchrun --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv_id=$FLOW_TASK_ID-$FLOW_ATTEMPT "
        "--rdzv_backend c10d -m stack.train config.yaml"
    ),
}
OF_ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines $FLOW_NUM_NODES --machine_rank $FLOW_NODE_RANK "
    "--main_process_ip $FLOW_MAIN_IP --main_process_port $MASTER_PORT --num_processes 4 -m stack.train"
)


def ranks_under(python: str, command: str, home: Path, directory: Path) -> list[list[str]]:
    """What each process has seen, by rank, of a gang of 2 nodes with 2 processes on each."""
    (directory / "stack").mkdir()
    (directory / "stack" / "train.py").write_text(SEEN)
    options = ["run", "-N", "2", "--manual", "--processes-per-node", "2", "--"]
    done = subprocess.run(
        [python, "-m", "flowlite.cli", *options, "sh", "-c", command],
        env={**os.environ, "FLOW_HOME": str(home)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line.split("] ", 2)[-1].split() for line in done.stdout.splitlines()]
    return sorted(words for words in lines if len(words) == 9 and words[-1] == "true")


def assert_one_gang(seen: list[list[str]], *, by_node: bool = True) -> None:
    """Four ranks, two on each node, that meet at one place."""
    assert [words[0] for words in seen] == ["0", "1", "2", "3"], seen
    assert [words[1] for words in seen] == ["0", "1", "0", "1"]
    assert {tuple(words[2:4]) for words in seen} == {("4", "2")}
    assert len({tuple(words[6:8]) for words in seen}) == 1
    nodes = [words[5] for words in seen]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    if by_node:
        assert nodes[0] == "0"
        assert [words[4] for words in seen] == nodes


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("guide", GUIDES)
def test_torchrun(guide: str, flow_home: Path, tmp_path: Path) -> None:
    seen = ranks_under(sys.executable, GUIDES[guide], flow_home, tmp_path)
    # A dynamic rendezvous gives out the nodes' ranks as they come.
    assert_one_gang(seen, by_node="c10d" not in GUIDES[guide])


@pytest.mark.hours
@pytest.mark.timeout(300)
def test_accelerate_launch(flow_home: Path, tmp_path: Path) -> None:
    """As its guide for several machines has it. With the file, docs/stacks/accelerate.md runs it each time."""
    assert_one_gang(ranks_under(str(trainers()), OF_ACCELERATE, flow_home, tmp_path))
