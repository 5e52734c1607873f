"""The sweep over five learning rates, as an example: as a function on this machine, and as a batch script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.api.client import Flow
from tests.batch.conftest import FLOW, ROOT

LEARNING_RATES = ["0.001", "0.0005", "0.0001", "5e-05", "1e-05"]


def test_as_a_function(flow_home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/sweep/learning_rates.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, best = done.stdout.splitlines()
    assert [line.split()[1].rstrip(":") for line in lines] == LEARNING_RATES
    losses = [float(line.split()[-1]) for line in lines]
    assert losses == sorted(losses)
    assert best == "best: lr 0.001"


@pytest.mark.slow
def test_as_a_batch_script(flow_home: Path) -> None:
    done = subprocess.run(
        [*FLOW, "run", "examples/sweep/sweep.sbatch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 of 5 tasks completed" in done.stderr
    for element, rate in enumerate(["1e-3", "5e-4", "1e-4", "5e-5", "1e-5"]):
        said = sorted(line.text for line in Flow().get_task(f"sweep-{element}").logs())
        assert said == [f"rank {n} of 2 trains with learning rate {rate}" for n in range(2)]
