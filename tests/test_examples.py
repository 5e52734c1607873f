"""The first thing a user runs, run as he runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "examples" / "digits_ddp.py"
LINE = re.compile(r"\[Node (\d), rank \d\] \[\d\d:\d\d:\d\d\] (.*)")


def run_digits(*arguments: str) -> list[str]:
    """Lines that the example prints."""
    done = subprocess.run(
        [sys.executable, str(DIGITS), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_digits_train_and_resume(flow_home: Path) -> None:
    *first, end = run_digits("5")
    said = [match.groups() for line in first if (match := LINE.fullmatch(line))]
    assert len(said) == len(first), first
    assert accuracy(end) > 0.9
    assert {node for node, _ in said} == {"0", "1", "2", "3"}
    begun = sorted(text for _, text in said if text.startswith("rank"))
    assert [text.split(":")[0] for text in begun] == [f"rank {rank} of 8" for rank in range(8)]
    assert all(text.endswith("on cpu, 0 epochs done before") for text in begun)

    *second, end = run_digits("20")
    assert sum("5 epochs done before" in line for line in second) == 8
    assert not any("epoch 5:" in line for line in second)
    assert accuracy(end) > 0.95
    assert (flow_home / "volumes" / "digits").is_dir()


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
