"""A module that uses the decorator, imported where nothing but the agent's zip has been put."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from tests.helpers import put_agent

MODULE = """
from flowlite import Flow, FlowApp, FlowError, GpuRequest, Retries, Secret, Task, Volume

app = FlowApp("x", provider="slurm", gpu="h100")
flow = Flow()


@app.function(
    num_instances=2, volumes={"/data": Volume("data", size_gb=3)}, retries=Retries(2), secrets=[Secret("A")]
)
def train(x: int) -> int:
    return x + 1


other = train.options(gpu="h200")
"""


def on_a_bare_node(
    code: str, tmp_path: Path, task: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs code with the standard library and the agent's zip alone."""
    put_agent(tmp_path)
    archive = build_agent_zip(tmp_path).path
    (tmp_path / "module.py").write_text(MODULE)
    preamble = f"import sys; sys.path += [{str(archive / 'packed')!r}, {str(tmp_path)!r}];"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", preamble + code],
        env=environment | ({"FLOW_TASK_ID": "t1"} if task else {}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_module_that_uses_everything_can_be_imported(tmp_path: Path) -> None:
    done = on_a_bare_node(
        "import module; print(module.train(1), module.other.local(2), module.train)", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 3 <Function train(x: int) -> int ")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("module.train.remote(1)", "called by a worker of task t1"),
        (
            "module.train.remote(1)",
            "starts tasks runs without `flow run --`, as in `python train.py`",
        ),
        ("module.flow.run(module.train)", "Flow.run cannot be used by a worker"),
        ("module.app.function(lambda: (yield))", "a generator cannot be sent back"),
    ],
)
def test_what_cannot_be_done_there_is_said(tmp_path: Path, code: str, said: str) -> None:
    done = on_a_bare_node(f"import module; {code}", tmp_path)
    assert done.returncode == 1
    assert said in done.stderr


def test_placeholders_are_for_nodes_only(tmp_path: Path) -> None:
    done = on_a_bare_node("from flowlite import Volume", tmp_path, task=False)
    assert "ModuleNotFoundError" in done.stderr
