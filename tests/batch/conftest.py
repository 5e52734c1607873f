"""A directory with batch scripts, and a stand-in for the training program that they start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
FLOW = [sys.executable, "-m", "flowlite.cli"]
ROOT = Path(__file__).parent.parent.parent

# What OpenCLIP's and OpenFlamingo's `init_distributed_device` look at, in their order, and one number that depends on
# every rank having been there.
TRAIN = """
import argparse, os, sys
import torch
import torch.distributed as dist

def first(*names):
    return next((int(os.environ[name]) for name in names if name in os.environ), None)

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--name", default="")
arguments, rest = parser.parse_known_args()
local = first("LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
rank = first("RANK", "PMI_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
world = first("WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
assert (local, rank, world) == (
    first("SLURM_LOCALID"), first("SLURM_PROCID"), first("SLURM_NTASKS")
), "the sets of variables disagree"
assert "SLURM_PROCID" in os.environ
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world)
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
print(f"rank {rank} local {local} world {dist.get_world_size()} sum {total.item():g} lr {arguments.lr:g}", flush=True)
print(f"master {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} rest {len(rest)}", flush=True)
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """`open_clip/src/train.py` as the guide has it, and a conda that is none."""
    source = tmp_path / "open_clip" / "src"
    source.mkdir(parents=True)
    (source / "train.py").write_text(TRAIN)
    conda = tmp_path / "conda"
    conda.write_text('#!/bin/sh\necho "conda() { export CONDA_DEFAULT_ENV=\\$2; }"\n')
    conda.chmod(0o755)
    return tmp_path


@pytest.fixture
def run(flow_home: Path, project: Path) -> Run:
    """`flow run [OPTIONS] job.sbatch [ARGUMENTS]` for a script, in the project's directory."""

    def go(
        script: str, *options: str, arguments: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        (project / "job.sbatch").write_text(script)
        return subprocess.run(
            [*FLOW, "run", *options, "job.sbatch", *arguments],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return go
