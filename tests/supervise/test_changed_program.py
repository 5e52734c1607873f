"""flowlite is upgraded while a task runs: its supervisor begins anew with the new files, and leads the task on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowlite.supervise.record import process_identity
from tests.gangs import let_go
from tests.helpers import eventually

ROOT = Path(__file__).parents[2]
# Of the old version the outputs are fetched with `fetch_changing`, which its supervisor has imported at its start.
EARLY, LATE = "flowlite/connect/fetching.py", "flowlite/supervise/attempt/outputs/fetch.py"
SCRIPT = 'echo trained > model.pt; while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.05; done'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A flowlite that may be changed."""
    found = tmp_path / "checkout"
    for name in ("flowlite", "provider_adapters"):
        shutil.copytree(ROOT / name, found / name, ignore=shutil.ignore_patterns("__pycache__"))
    return found


class Upgraded:
    """A task of a flowlite that is upgraded meanwhile."""

    def __init__(self, checkout: Path, home: Path, project: Path) -> None:
        self.checkout, self.home, self.project = checkout, home, project
        project.mkdir()
        words = ("run", "--detach", "--outputs", "model.pt", "--", "sh", "-c", SCRIPT)
        self.id = self.flow(*words).split()[-1]
        eventually(lambda: self.status()["status"] == "running", what="the task runs")

    def flow(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _FLOW, str(self.checkout), *words],
            cwd=self.project,
            env={**os.environ, "FLOW_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.flow("status", self.id, "--json"))["data"]
        return found

    def change(self, late: str) -> None:
        """Writes the new version, in which what is imported late needs what was imported early."""
        early = self.checkout / EARLY
        early.write_text(early.read_text() + "\n\nfetch_anew = fetch_changing\n")
        path = self.checkout / LATE
        changed = path.read_text().replace("fetching.fetch_changing(", late)
        assert changed != path.read_text()
        path.write_text(changed)

    def ended(self) -> dict[str, Any]:
        let_go(self.home)
        final = ("completed", "failed")
        return eventually(lambda: (it := self.status())["status"] in final and it, what="its end")

    @property
    def log(self) -> str:
        return (self.home / "tasks" / self.id / "supervisor.log").read_text()


_FLOW = "import sys; sys.path.insert(0, sys.argv.pop(1)); from flowlite.cli import program; sys.exit(program())"


def test_its_task_ends_as_it_would_have(checkout: Path, flow_home: Path, tmp_path: Path) -> None:
    task = Upgraded(checkout, flow_home, tmp_path / "project")
    before = json.loads((flow_home / "tasks" / task.id / "supervisor.json").read_bytes())
    task.change("fetching.fetch_anew(")
    found = task.ended()
    assert found["status"] == "completed", (found["reason"], task.log)
    (model,) = (tmp_path / "project").glob("flow-outputs/*/model.pt")
    assert model.read_text() == "trained\n"
    assert "it begins anew with them" in task.log
    assert json.loads((flow_home / "tasks" / task.id / "supervisor.json").read_bytes()) == before


def test_a_version_that_cannot_do_it_either_is_begun_once(
    checkout: Path, flow_home: Path, tmp_path: Path
) -> None:
    task = Upgraded(checkout, flow_home, tmp_path / "project")
    # The clock of the file system is ahead, as that of a file server may be.
    task.change("fetching.nobody_has_this(")
    soon = time.time() + 3600
    os.utime(checkout / EARLY, (soon, soon))
    found = task.ended()
    assert found["status"] == "failed"
    assert "has no attribute 'nobody_has_this'" in found["reason"]
    assert task.log.count("it begins anew with them") == 1


@pytest.fixture
def mended(checkout: Path) -> Path:
    """A file of the next version. That of this version cannot end nodes."""
    provider = checkout / "provider_adapters/local/provider.py"
    head = "    def terminate(self, instances: Sequence[Instance]) -> None:\n"
    good = provider.read_text()
    assert head in good
    mended = checkout / "mended.py"
    mended.write_text(good)
    provider.write_text(
        good.replace(head, f'{head}        raise ProviderError("cannot be read")\n')
    )
    return mended


def test_an_upgrade_gives_back_nodes_that_the_version_before_cannot(
    checkout: Path, mended: Path, flow_home: Path, tmp_path: Path
) -> None:
    """Its supervisor tries again every few minutes, and would for days."""
    task = Upgraded(checkout, flow_home, tmp_path / "project")
    let_go(flow_home)
    eventually(lambda: "cannot be read" in task.status()["reason"], what="it cannot be ended")
    shutil.copy(mended, checkout / "provider_adapters/local/provider.py")
    found = task.ended()
    assert (found["status"], found["reason"]) == ("completed", ""), task.log
    assert "it begins anew with them" in task.log


def test_during_an_upgrade_nodes_are_ended_by_the_version_before(
    checkout: Path, mended: Path, flow_home: Path, tmp_path: Path
) -> None:
    """Installers remove the old files first. Nobody else would end the nodes, and they cost money."""
    task = Upgraded(checkout, flow_home, tmp_path / "project")
    leader = process_identity.noted_supervisor(flow_home, task.id)
    assert leader is not None
    let_go(flow_home)
    eventually(lambda: "trying again in" in task.log, what="it cannot be ended")
    entry = checkout / "flowlite/supervise/process/main.py"
    removed = entry.rename(checkout / "main.py")
    seen = task.log.count("trying again in")
    eventually(
        lambda: task.log.count("trying again in") > seen + 1 or not leader.alive, what="more tries"
    )
    assert leader.alive, task.log
    removed.rename(entry)
    shutil.copy(mended, checkout / "provider_adapters/local/provider.py")
    assert task.ended()["status"] == "completed", task.log
