"""Axolotl itself, unmodified: 2.6 GB to install, and its imports alone take minutes of processor time in a gang."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.stacks.environments import axolotl

AXOLOTL = Path(__file__).resolve().parents[2] / "examples" / "axolotl"
SECONDS = 1500.0

pytestmark = [pytest.mark.slow, pytest.mark.hours, pytest.mark.timeout(4000)]


@pytest.fixture
def run(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs a command with that Python's programs; gives what it printed."""
    tools = axolotl().parent
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")

    def run(*command: object) -> str:
        done = subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    return run


def test_axolotl_trains(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run("python", AXOLOTL / "prepare.py", "work")
    run("axolotl", "preprocess", "work/llama.yaml")
    gang = ("flow", "run", "-N", "2", "--processes-per-node", "2", "--")
    said = run(*gang, "python", AXOLOTL / "on_cpu.py", "work/llama.yaml")
    # In the first step: 4 ranks, 2 sentences on each, 20 words and an end in each.
    assert f"'tokens/trainable': {4 * 2 * 21}," in said
    assert (tmp_path / "work" / "out" / "model.safetensors").is_file()


def test_fsdp2_under_accelerate_launch(run) -> None:  # type: ignore[no-untyped-def]
    launch = f"accelerate launch --config_file $FLOW_ACCELERATE_CONFIG {AXOLOTL}/fsdp2.py"
    gang = ("flow", "run", "-N", "2", "--processes-per-node", "2", "--manual", "--")
    said = run(*gang, "sh", "-c", launch)
    assert said.count("'world': 4") == 4
    assert said.count("'shards': [(0, 6184), (1, 6184), (2, 6184), (3, 6184)]") == 4
