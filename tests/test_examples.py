"""The first thing a user runs, run as he runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite import Flow
from tests.helpers import assert_no_process_left

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "examples" / "digits_ddp.py"
LINE = re.compile(r"\[Node (\d), rank \d\] \[\d\d:\d\d:\d\d\] (.*)")


def run_digits(epochs: int) -> list[str]:
    """Lines that the example prints."""
    done = subprocess.run(
        [sys.executable, str(DIGITS), str(epochs)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


# docs/getting-started.md trains and resumes with the same example in every `make test-all` (tests/docs/test_pages.py).
@pytest.mark.hours
@pytest.mark.timeout(600)
def test_digits_train_and_resume_and_every_command_after_it(flow_home: Path) -> None:
    *first, end = run_digits(5)
    said = [match.groups() for line in first if (match := LINE.fullmatch(line))]
    assert len(said) == len(first), first
    assert accuracy(end) > 0.9
    assert {node for node, _ in said} == {"0", "1", "2", "3"}
    begun = sorted(text for _, text in said if text.startswith("rank"))
    assert [text.split(":")[0] for text in begun] == [f"rank {rank} of 8" for rank in range(8)]
    assert all(text.endswith("on cpu, 0 epochs done before") for text in begun)

    again = flow("run", str(DIGITS), "--epochs", "20", "--json")
    result = json.loads(again)["data"]["result"]
    assert result["accuracy"] > 0.95
    assert result["ranks"] == list(range(8))
    assert (flow_home / "volumes" / "digits").is_dir()
    every_command_after_it()


def every_command_after_it() -> None:
    assert "completed" in flow("status")
    followed = flow("logs", "digits", "-f")
    assert len(re.findall(r"rank \d of 8: .* 5 epochs done before", followed)) == 8
    assert "epoch 5:" not in followed
    of_one = flow("logs", "digits", "--node", "1")
    assert set(re.findall(r"^\[Node (\d), rank \d\]", of_one, re.MULTILINE)) == {"1"}
    told = flow("ssh", "digits", "--node", "1", "--command", "echo node $FLOW_NODE_RANK")
    assert told == "node 1\n"
    assert "'accuracy': 0.9" in flow("result", "digits")
    assert "$0.00" in flow("cost", "digits")
    for task in Flow().list_tasks():
        assert_no_process_left(task.id)


def flow(*arguments: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(line: str) -> float:
    """The figure in the last line."""
    found = re.fullmatch(
        r"held-out accuracy (0\.\d+), trained by ranks \[0, 1, 2, 3, 4, 5, 6, 7\]", line
    )
    assert found, line
    return float(found[1])


def test_the_client_needs_no_torch() -> None:
    code = "import sys; sys.path.insert(0, 'examples'); import digits_ddp; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.gpu
def test_digits_on_a_gpu(flow_home: Path) -> None:
    from provider_adapters.local.gpus import discover

    options = ["-N", "1", "--processes-per-node", "auto", "--gpu", discover()[0].kind]
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "run", *options, f"{DIGITS}::train"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "images on cuda:0" in done.stdout
