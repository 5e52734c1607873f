"""`flow outputs` and `flow cp`: files of running and of ended tasks, on hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.cli.transfer_progress import Transfer
from flowlite.testing.hosts import Cluster
from tests.helpers import eventually
from tests.providers.lab import Lab


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    return Lab(hosts, flow_home, list(hosts)[:2])


@pytest.fixture
def running(lab: Lab, tmp_path: Path) -> Iterator[str]:
    """A task of two nodes that has written its files and goes on."""
    script = (
        'mkdir -p runs/deep; echo "of $FLOW_NODE_RANK" > runs/deep/f; '
        "head -c 3000000 /dev/zero > runs/big; echo ready; sleep 600"
    )
    task = lab.flow(
        *("run", "-N", "2", "--detach", "--outputs", "runs/**", "--", "sh", "-c", script),
        cwd=tmp_path,
    ).stdout.split()[-1]
    eventually(lambda: lab.flow("logs", task).stdout.count("ready") == 2, timeout=90, every=0.3)
    yield task
    lab.flow("cancel", "-w", task, code=None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_running_task(lab: Lab, running: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()

    def flow(*words: str, code: int = 0) -> str:
        done = lab.flow(*words, code=code, cwd=here)
        return done.stdout + done.stderr

    # A file, a directory, another node, an absolute path.
    flow("cp", f"{running}:runs/deep/f", ".")
    assert (here / "f").read_text() == "of 0\n"
    flow("cp", f"{running}:1:runs/deep/f", "other")
    assert (here / "other").read_text() == "of 1\n"
    flow("cp", f"{running}:runs/deep/f", "made/")
    assert (here / "made" / "f").read_text() == "of 0\n"
    assert "2 files (3 MB)" in flow("cp", f"{running}:runs", ".")
    assert (here / "runs" / "deep" / "f").read_text() == "of 0\n"
    assert (here / "runs" / "big").stat().st_size == 3_000_000
    flow("cp", f"{running}:/etc/hostname", "name")
    # What has no size is not copied as nothing.
    no_size = flow("cp", f"{running}:/proc/cpuinfo", "cpu", code=5)
    assert f"node 0 of task sh ({running}): " in no_size
    assert "it has no size" in no_size
    assert "neither a file nor" in flow("cp", f"{running}:/dev/zero", "zero", code=5)
    # Again: nothing is overwritten, and what is there is there.
    flow("cp", f"{running}:runs", ".")
    (here / "f").write_text("mine")
    refused = flow("cp", f"{running}:runs/deep/f", ".", code=1)
    assert f"not written over other files in {here}: f; remove them" in refused
    document, error = flow("cp", f"{running}:runs/deep/f", ".", "--json", code=1).splitlines()
    assert json.loads(document)["data"]["taken"] == ["f"]
    assert error == refused.strip()
    assert (here / "f").read_text() == "mine"
    # To the node, and back.
    (here / "data" / "sub").mkdir(parents=True)
    (here / "data" / "a").write_text("a")
    (here / "data" / "sub" / "b").write_text("b")
    flow("cp", "data", f"{running}:1:.")
    flow("cp", f"{running}:1:data", "back")
    assert (here / "back" / "sub" / "b").read_text() == "b"
    flow("cp", "f", f"{running}:new/name")
    flow("cp", f"{running}:new/name", "named")
    assert (here / "named").read_text() == "mine"
    # What is wrong.
    absent = flow("cp", f"{running}:1:none", ".", code=3)
    assert re.search(rf"error: node 1 of task sh \({running}\): No such file .*/none\n", absent)
    assert "neither path is on a node" in flow("cp", "a", "b", code=2)
    assert "a path here that has a colon" in flow("cp", "a:b", f"{running}:x", code=2).lower()
    assert "does not exist" in flow("cp", "none", f"{running}:x", code=2)
    # The outputs as they are now.
    assert "its outputs come at its end" in flow("outputs", running, code=2)
    flow("outputs", running, "--to", "now")
    assert (here / "now" / "node1" / "runs" / "deep" / "f").read_text() == "of 1\n"
    (here / "now" / "node1" / "runs" / "deep" / "f").write_text("mine")
    told = lab.flow("outputs", running, "--to", "now", "--json", code=1, cwd=here)
    assert json.loads(told.stdout)["data"]["taken"] == ["node1/runs/deep/f"]


def test_an_ended_task(lab: Lab, tmp_path: Path) -> None:
    script = "mkdir runs; echo x > runs/a; echo y > runs/b"
    lab.flow("run", "--name", "job", "--outputs", "runs/**", "--", "sh", "-c", script, cwd=tmp_path)
    shown = lab.flow("outputs", "job").stdout.split()
    assert [Path(path).read_text() for path in shown] == ["x\n", "y\n"]
    copy = tmp_path / "copy"
    lab.flow("outputs", "job", "--to", str(copy))
    assert (copy / "runs" / "a").read_text() == "x\n"
    (copy / "runs" / "a").write_text("mine")
    refused = lab.flow("outputs", "job", "--to", str(copy), code=1)
    assert "not written over other files" in refused.stderr
    told = lab.flow("outputs", "job", "--to", str(copy), "--json", code=1)
    assert json.loads(told.stdout)["data"]["taken"] == ["runs/a"]
    assert (copy / "runs" / "a").read_text() == "mine"
    data = json.loads(lab.flow("outputs", "job", "--json").stdout)["data"]
    assert [each["path"] for each in data["listed"]] == ["runs/a", "runs/b"]
    assert "was given back" in lab.flow("cp", "job:runs/a", ".", code=None).stderr
    lab.flow("run", "--name", "bare", "--", "true")
    assert "without outputs=" in lab.flow("outputs", "bare", code=2).stderr


def test_the_bar() -> None:
    transfer = Transfer("runs", 2_000_000)
    transfer.moved(500_000)
    assert transfer.row(0.5) == "runs: [######------------------] 25%  500 kB of 2 MB  1 MB/s"
