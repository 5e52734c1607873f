"""Every trainer reads the same ranks from the environment that flowlite makes, whatever was in the air."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.sbatch import slurm_environment
from flowlite.node.sbatch.layout import Placement
from flowlite.node.worker.environment import WorkerPlace, worker_environment
from tests.components import need
from tests.stacks.airs import AIRS, ALL, TASK_OF_SLURM
from tests.stacks.environments import trainers

HERE = Path(__file__).resolve().parent
# The first test waits for the import of nine trainers.
pytestmark = pytest.mark.timeout(540)
SEAT = WorkerPlace(
    task="t1",
    name="n",
    attempt=1,
    mode="auto",
    node_rank=1,
    local_rank=0,
    processes_per_node=2,
    addresses=("10.0.0.1", "10.0.0.2"),
    master_addr="10.0.0.1",
    master_port=29501,
    only_cpu=True,
)
RIGHT = [2, 0, 4]
HARMLESS = {
    "MVAPICH",
    "a task of flowlite",
    "a RANK alone",
    "a WORLD_SIZE alone",
    "a LOCAL_RANK alone",
}
"""What is overruled by ours, and need not be taken away for the trainers of this table."""


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, Any]]:
    """What every trainer reads in each air: as flowlite makes it, and with ours merely added to it."""
    base = {name: os.environ[name] for name in ("PATH", "HOME")}
    ours = worker_environment({}, SEAT)
    asked = {}
    for name, air in {**AIRS, "all": ALL, "nothing": {}}.items():
        asked[f"in {name}"] = worker_environment({**base, **air}, SEAT)
        asked[f"with {name}"] = {**base, **air, **ours}
    asked["in a batch script"] = {**base, **task_of_a_batch_script(ours)}
    asked["in nothing, with GPUs"] = worker_environment(base, SEAT._replace(only_cpu=False))
    done = subprocess.run(
        [trainers(), HERE / "readers.py"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def task_of_a_batch_script(ours: dict[str, str]) -> dict[str, str]:
    """The environment of task 2 of `srun` in a batch script of a job with 2 nodes and 2 tasks on each."""
    names, tasks = slurm_environment.node_names(SEAT.addresses), Placement((0, 1), (2, 2)).tasks()
    script = slurm_environment.of_script(
        {"variables": {"SLURM_JOB_NAME": "train", "SLURM_NTASKS_PER_NODE": "2"}},
        job="4711",
        names=names,
        counts=(2, 2),
        directory="/data/me",
        cores=8,
        attempt=1,
        pid=17,
    )
    task = slurm_environment.of_task(tasks[2], tasks, step=0, names=names, pid=18, per_node=2)
    return slurm_environment.of_process({**ours, **script}, {}, [], task, {})


@pytest.mark.slow
@pytest.mark.parametrize("air", [*AIRS, "all", "nothing", "a batch script"])
def test_every_trainer_reads_the_same(said: dict[str, dict[str, Any]], air: str) -> None:
    assert said[f"in {air}"] == dict.fromkeys(said[f"in {air}"], RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("air", sorted({*AIRS, "all"} - HARMLESS))
def test_some_would_not_if_nothing_were_taken_away(
    said: dict[str, dict[str, Any]], air: str
) -> None:
    assert set(map(str, said[f"with {air}"].values())) != {str(RIGHT)}


@pytest.mark.slow
def test_accelerate_would_train_alone_where_it_is_not_told_that_there_is_no_gpu(
    said: dict[str, dict[str, Any]],
) -> None:
    assert said["in nothing, with GPUs"]["accelerate"] == "trains alone"


BEGIN_MPI = "import ctypes, sys; ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL).MPI_Init(None, None)"


def test_a_trainer_that_begins_mpi_is_not_ended_below_srun() -> None:
    """As Lightning and DeepSpeed do by importing mpi4py, to look whether MPI has started them."""
    need("mpi")
    library = ctypes.util.find_library("mpi")
    assert library is not None
    base = {name: os.environ[name] for name in ("PATH", "HOME")}
    step = {
        name: value for name, value in TASK_OF_SLURM.items() if not name.startswith(("PMI", "PMIX"))
    }

    def begins(environment: dict[str, str]) -> bool:
        command = [sys.executable, "-c", BEGIN_MPI, library]
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=90, check=False
        )
        return done.returncode == 0

    assert begins(worker_environment({**base, **step}, SEAT))
    assert not begins({**base, **step})


@pytest.mark.slow
def test_they_all_meet_on_this_machine(flow_home: Path, tmp_path: Path) -> None:
    """With everything in the air that there is, where flowlite is started."""
    out = tmp_path / "seen.json"
    done = subprocess.run(
        [trainers(), HERE / "trainers_look.py", out, "local", "2", "2"],
        env={**os.environ, **ALL, "FLOW_HOME": str(flow_home), "FLOW_NESTED": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_all_met(json.loads(out.read_text()), 2, 2)


def assert_all_met(found: list[dict[str, Any]], nodes: int, processes: int) -> None:
    """Every trainer has seen, in every worker, what flowlite says, and has reached all ranks."""
    world = nodes * processes
    assert [each["rank"] for each in found] == list(range(world))
    for each in found:
        right = [each["rank"], each["local_rank"], world, 2**world - 1]
        assert each["node"] == each["rank"] // processes
        assert each["seen"] == dict.fromkeys(each["seen"], right)
