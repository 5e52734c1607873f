"""Trainers on machines of their own: they read the same ranks, and find each other, over SSH and in a job of Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.providers.lab import Lab
from tests.stacks.environments import trainers
from tests.stacks.test_environment import HERE, assert_all_met

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster
    from tests.slurm.site import SlurmSite

SECONDS = 500


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    """A pool whose tasks run in the environment of the trainers."""
    return Lab(hosts, flow_home, settings=f'python = "{trainers()}"')


def look(
    provider: str, processes: int, environment: dict[str, str], directory: Path
) -> list[dict[str, Any]]:
    """Asks all trainers on two nodes; all must have met."""
    out = directory / "seen.json"
    done = subprocess.run(
        [trainers(), HERE / "trainers_look.py", out, provider, "2", str(processes)],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    logs = Path(environment["FLOW_HOME"]).glob("tasks/*/supervisor.log")
    assert done.returncode == 0, "\n".join([done.stderr, *(log.read_text() for log in logs)])
    found: list[dict[str, Any]] = json.loads(out.read_text())
    assert_all_met(found, 2, processes)
    return found


@pytest.mark.hours
@pytest.mark.timeout(540)
def test_they_all_meet(lab: Lab, tmp_path: Path) -> None:
    with lab.cluster.enter_laptop():
        found = look("ssh", 1, lab.environment, tmp_path)
    assert [each["host"] for each in found] == ["node00", "node01"]


@pytest.mark.timeout(540)
def test_they_all_meet_in_a_job_of_slurm(slurm_site: SlurmSite, tmp_path: Path) -> None:
    """Workers are below a task that `srun` started, and are told nothing of it."""
    config = slurm_site.home / "config.toml"
    config.write_text(config.read_text().replace(sys.executable, str(trainers())))
    with slurm_site.slurm.enter_laptop():
        found = look("slurm", 2, dict(os.environ), tmp_path)
    hosts = [each["host"] for each in found]
    assert hosts == sorted(hosts)
    assert len(set(hosts)) == 2


@pytest.mark.hours
@pytest.mark.timeout(540)
def test_a_bare_accelerate_launch_forms_the_gang(lab: Lab) -> None:
    """It takes port 29500, and looks whether somebody is there: only where nodes share no machine."""
    say = "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK here, at $MASTER_ADDR:$MASTER_PORT"
    launch = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--no_python"]
    done = lab.flow("run", "-N", "2", "--manual", "--", *launch, "sh", "-c", say, seconds=SECONDS)
    leader = f"{lab.hosts[0].address}:29500"
    for rank in range(4):
        assert f"rank {rank} of 4, {rank % 2} here, at {leader}" in done.stdout
