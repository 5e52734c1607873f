"""The examples on machines of their own: hosts reached by SSH, and the nodes of a Slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.providers.lab import Lab
from tests.slurm.site import SlurmSite
from tests.stacks.environments import trainers

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster
    from flowlite.testing.slurm import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
CLIP = f"{ROOT}/examples/open_clip/train.py::rehearse"
IN_ONE_GANG = "first loss 4.1589 = ln(64): 4 ranks in one gang"
# A function, whose workers leave without the teardown of torch, which aborts at random. Without GPUs the script takes
# all processes for those of one machine, and has them meet in a file.
ACCELERATE = """\
from flowlite import FlowApp


@FlowApp().function(num_instances=2)
def accelerate_test(directory: str) -> str:
    import os

    from accelerate.test_utils.scripts.test_script import main

    os.chdir(directory)
    main()
    return "passed"
"""
SECONDS = 500.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    return Lab(hosts, flow_home, hosts[:2], settings=f'python = "{trainers()}"')


def flow_on_slurm(slurm: SlurmCluster, home: Path, patch: pytest.MonkeyPatch, *target: str) -> str:
    """What `flow run` says on a laptop that reaches the login node only."""
    SlurmSite(slurm, home, patch, python=trainers())
    with slurm.enter_laptop():
        done = subprocess.run(
            [sys.executable, "-m", "flowlite.cli", "run", *target],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def accelerate_test(tmp_path: Path) -> str:
    """Accelerate's own script for `accelerate test`. Its authors run it with two processes, and with four it fails."""
    (tmp_path / "own_script.py").write_text(ACCELERATE)
    return f"{tmp_path}/own_script.py::accelerate_test"


@pytest.mark.hours
def test_open_clip_over_ssh(lab: Lab) -> None:
    assert IN_ONE_GANG in lab.flow("run", CLIP, seconds=SECONDS).stdout


@pytest.mark.hours
def test_open_clip_on_slurm(
    slurm: SlurmCluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IN_ONE_GANG in flow_on_slurm(slurm, flow_home, monkeypatch, CLIP)


@pytest.mark.hours
def test_accelerate_test_on_this_machine(flow_home: Path, accelerate_test: str) -> None:
    command = [trainers(), "-m", "flowlite.cli", "run", accelerate_test, "--directory", flow_home]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, cwd=flow_home, check=True
    )
    assert done.stdout.endswith("passed\n")


@pytest.mark.hours
def test_accelerate_test_over_ssh(lab: Lab, accelerate_test: str) -> None:
    said = lab.flow("run", accelerate_test, "--directory", "/mnt/shared", seconds=SECONDS).stdout
    assert said.endswith("passed\n")


@pytest.mark.hours
def test_accelerate_test_on_slurm(
    slurm: SlurmCluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch, accelerate_test: str
) -> None:
    target = (accelerate_test, "--directory", str(slurm.shared))
    assert flow_on_slurm(slurm, flow_home, monkeypatch, *target).endswith("passed\n")
