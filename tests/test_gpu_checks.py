"""`make gpu`, on a machine without a GPU: a fake `nvidia-smi`, and the CPU in the place of CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import machine
from benchmarks.gpu.machine import Failed, Machine, Skipped
from benchmarks.measure import ROOT
from benchmarks.table import Row
from flowlite.testing.hosts import cards


@pytest.fixture
def fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs, as far as nvidia-smi tells."""
    cards.install(tmp_path, {"count": 2, "name": "NVIDIA H200", "memory": 143771})
    tools = tmp_path / "upper" / "usr" / "bin"
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def gpu(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", str(out), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        ("site-packages", "lacks torch, cloudpickle, pydantic, typer: pip install torch"),
        ("PATH", "there is no nvidia-smi on the PATH"),
    ],
)
def test_what_is_missing_is_told_in_one_line(tmp_path: Path, hidden: str, why: str) -> None:
    isolated = ["-I", "-S"] if hidden == "site-packages" else ["-I"]
    run = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import benchmarks.gpu.__main__ as it; sys.exit(it.main())"
    done = subprocess.run(
        [sys.executable, *isolated, "-c", run, str(tmp_path / "out")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_torch_without_cuda_is_told(fake_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no GPU" in machine.why_not(rehearse=False)
    assert machine.why_not(rehearse=True) == ""


def test_what_fails_or_is_skipped_is_in_the_table_and_the_others_run(
    fake_gpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(here: Machine) -> list[Row]:
        raise Failed("rank 0 | said\nno")

    def skipped(here: Machine) -> list[Row]:
        raise Skipped("lightning is not installed")

    def passes(here: Machine) -> list[Row]:
        return [Row("GPU memory", f"{here.used_mb()[0]} MB", "nvidia-smi 0 MB", reached=True)]

    found = {"fails": fails, "skipped": skipped, "passes": passes}
    monkeypatch.setattr(command, "CHECKS", found)
    out = fake_gpus / "out"
    monkeypatch.setattr(sys, "argv", ["gpu", str(out), "--rehearse"])
    assert command.main() == 1
    told = json.loads((out / "gpu.json").read_text())
    assert [(each["check"], each["state"]) for each in told["checks"]] == [
        ("fails", "failed"),
        ("skipped", "skipped"),
        ("passes", "passed"),
    ]
    assert told["machine"]["gpus"] == "NVIDIA H200, NVIDIA H200"
    table = (out / "gpu.md").read_text()
    assert "| fails | failed | rank 0 \\| said no |  |  | NO |" in table
    assert "| skipped | skipped | lightning is not installed |" in table
    assert "| GPU memory | 0 MB | nvidia-smi 0 MB |  |  | yes |" in table
    assert table in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_checks_run_to_their_end_without_a_gpu(fake_gpus: Path) -> None:
    pytest.importorskip("torch")
    names = ["nccl", "shared", "kill", "failures", "pinned"]
    done = gpu(fake_gpus / "out", "--rehearse", *names)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((fake_gpus / "out" / "gpu.json").read_text())
    assert [(each["check"], each["state"]) for each in told["checks"]] == [
        (name, "passed") for name in names
    ]
