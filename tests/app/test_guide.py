"""Every program of `examples/guide` runs: small ones here, those of full size apart."""

from __future__ import annotations

import ast
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.s3.servers import S3Server

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "examples" / "guide"

Run = Callable[..., str]


@pytest.fixture
def run(flow_home: Path, tmp_path: Path) -> Run:
    """Runs one program of the guide and gives what it printed."""

    def run(name: str, scale: str = "2x2", code: int = 0, timeout: float = 60) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLOW_GUIDE_SCALE": scale}
        done = subprocess.run(
            [sys.executable, str(GUIDE / name)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    return run


def test_quickstart(run: Run) -> None:
    assert "4 processes trained together" in run("quickstart.py")


def test_multi_node(run: Run) -> None:
    assert "{'node': 0, 'status': 'complete'}" in run("multi_node.py")


def test_environment(run: Run) -> None:
    lines = run("environment.py").splitlines()
    ranks = [re.search(r" RANK=(\d+) LOCAL_RANK=(\d+) ", line) for line in lines]
    assert [found and found.groups() for found in ranks] == [
        ("0", "0"),
        ("1", "1"),
        ("2", "0"),
        ("3", "1"),
    ]


@pytest.mark.both
def test_shared_storage(run: Run, flow_home: Path) -> None:
    assert "{'epochs_completed': 10, 'checkpoints_saved': True}" in run("shared_storage.py")
    saved = flow_home / "volumes" / "model-checkpoints"
    assert {path.name for path in saved.rglob("*.pt")} == {f"epoch_{n}.pt" for n in range(10)}


@pytest.mark.needs("fuse")
def test_s3_dataset(run: Run, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GUIDE))
    stubs = importlib.import_module("stubs")
    data = io.BytesIO()
    stubs.torch.save(stubs.make_dataset(), data)
    s3_server.fill("ml-datasets", {"imagenet/clouds.pt": data.getvalue()})
    assert "{'training': 'complete'}" in run("s3_dataset.py", timeout=110)


def test_log_aggregation(run: Run) -> None:
    said = run("log_aggregation.py")
    for node in (0, 1):
        for epoch in range(3):
            found = re.findall(
                rf"^\[Node {node}(?:, rank \d)?\] \[\d\d:\d\d:\d\d\] Epoch {epoch} on node {node}$",
                said,
                re.M,
            )
            assert len(found) >= 2
    last = said.partition("Node 1 specific logs:")[2]
    assert "on node 1" in last
    assert "on node 0" not in last


def test_node_access(run: Run) -> None:
    said = run("node_access.py")
    for node in (0, 1):
        assert f"$ flow ssh training-task-xyz --node {node}" in said
        assert f"\nshell on node {node}" in said
        assert re.search(
            rf"\[Node {node}(?:, rank \d)?\] \[\d\d:\d\d:\d\d\] Node {node} is training", said
        )
    assert "python" in said.partition("ps aux")[2]
    assert "Traceback" not in said


def test_cost_protection(run: Run) -> None:
    said = run("cost_protection.py")
    assert "Current cost: $0.00" in said
    assert "Cost cap: $100.00/hour" in said
    assert "'gpus_used': 4" in said


def test_performance(run: Run) -> None:
    assert run("performance.py").strip() == "None"


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart.py", "32 processes trained together"),
        ("performance.py", "None"),
        # They differ from these in what they run, which is tried with 2x2 above, and not in how large a gang is formed.
        *(
            pytest.param(*each, marks=pytest.mark.hours)
            for each in (
                ("multi_node.py", "{'node': 0, 'status': 'complete'}"),
                ("shared_storage.py", "'checkpoints_saved': True"),
                ("cost_protection.py", "'gpus_used': 64"),
            )
        ),
    ],
)
def test_the_guides_own_sizes(run: Run, name: str, expected: str) -> None:
    assert expected in run(name, scale="", timeout=550)


def test_every_program_is_tested_and_listed() -> None:
    programs = {path.name for path in GUIDE.glob("*.py")} - {"scale.py", "stubs.py"}
    tested = re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text())
    listed = re.findall(r"^\| `(\w+\.py)` \|", (GUIDE / "README.md").read_text(), re.M)
    assert set(tested) == programs
    assert set(listed) == programs


def test_programs_keep_the_options_of_the_guide() -> None:
    def options(name: str) -> dict[str, object]:
        tree = ast.parse((GUIDE / name).read_text())
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "app.function"
        ]
        assert len(calls) == 1
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in calls[0].keywords}

    assert options("multi_node.py") == {
        "gpu": "h100:8",
        "num_instances": 4,
        "distributed_mode": "auto",
        "image": "nvcr.io/nvidia/pytorch:23.10-py3",
    }
    assert options("cost_protection.py")["gpu"] == "h100-80gb.sxm.8x"
    assert options("performance.py")["num_instances"] == 16
