"""Scripts that are run with `flow run`, on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.system import processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not processes.LINUX, reason="processes are not forked elsewhere"),
]

SCRIPT = """
import decimal, os, sys
import beside

with open(f"/proc/{os.getppid()}/stat") as file:
    server = int(file.read().rpartition(")")[2].split()[1])
loaded = "decimal" in open(f"/proc/{server}/maps").read()
print("rank", os.environ["RANK"], beside.VALUE, sys.argv, os.path.basename(__file__), sys._getframe().f_back, server)
if sys.argv[1:] == ["fail"]:
    raise ValueError(os.environ["RANK"])
"""


@pytest.fixture
def flow(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    project = tmp_path / "project"
    project.mkdir()
    (project / "flow.toml").write_text("")
    (project / "train.py").write_text(SCRIPT)
    (project / "beside.py").write_text(
        "import shutil; VALUE = shutil.get_terminal_size((1, 1)).columns"
    )
    # As an interactive Python exports them. Accelerate asks for this size when it is imported.
    monkeypatch.setenv("COLUMNS", "93")
    monkeypatch.setenv("LINES", "27")

    def flow(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flowlite.cli", *arguments],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    yield flow
    flow("gc", "--warm")


def _said(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    found = [
        line.partition("] rank ")[2].rsplit(" ", 1)
        for line in done.stdout.splitlines()
        if "] rank " in line
    ]
    return sorted(found)


@pytest.mark.parametrize("copied", [True, False], ids=["in a copy", "in place"])
def test_the_ranks_of_a_script_are_forked_and_so_is_its_next_run(flow: Any, copied: bool) -> None:
    run = (
        "run",
        *(["--sync"] if copied else []),
        "-N",
        "2",
        "--processes-per-node",
        "2",
        "--keep-warm",
        "2m",
        "--name",
        "one",
        "--",
    )
    seen = [flow(*run, "python", "train.py", "--lr", each) for each in ("0.1", "0.2")]
    assert [each.returncode for each in seen] == [0, 0], seen[0].stdout + seen[0].stderr
    for done, lr in zip(seen, ("0.1", "0.2"), strict=True):
        wanted = [f"{rank} 1 ['train.py', '--lr', '{lr}'] train.py None" for rank in range(4)]
        assert [text for text, _ in _said(done)] == wanted
    servers = [{server for _, server in _said(done)} for done in seen]
    assert len(servers[0]) == 1
    assert servers[0] == servers[1]
    assert "Python of its own" not in flow("status", "one").stdout


def test_a_failure_is_that_of_the_script(flow: Any) -> None:
    done = flow("run", "--sync", "--name", "two", "--", "python", "train.py", "fail")
    assert done.returncode == 1
    assert "rank 0 on node 0 exited with 1" in done.stdout + done.stderr
    lines = [line.partition("] ")[2].partition("] ")[2] for line in done.stdout.splitlines()]
    trace = lines[lines.index("Traceback (most recent call last):") :]
    assert trace[1].strip().startswith('File "')
    assert trace[1].endswith('project/train.py", line 10, in <module>')
    assert "ValueError: 0" in trace


def test_who_asks_is_told_why_a_rank_is_a_python_of_its_own(flow: Any) -> None:
    assert (
        flow(
            "run", "--sync", "--start", "spawn", "--name", "three", "--", "python", "train.py"
        ).returncode
        == 0
    )
    assert "not forked from the fork server: start='spawn'" in flow("status", "three").stdout
    run = ("run", "--sync", "--env", "PYTHONPATH=x", "--name", "four", "--", "python", "train.py")
    assert flow(*run).returncode == 0
    assert "PYTHONPATH has a relative path" in " ".join(flow("status", "four").stdout.split())
