"""Lightning and torchmetrics read the rank when they are imported, and are imported once for all ranks all the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from flowlite.node.system import processes
from flowlite.state.store import Store
from tests.stacks.environments import trainers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not processes.LINUX, reason="processes are not forked elsewhere"),
]
_PROGRAM = """
import json
import lightning, torchmetrics
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torchmetrics.utilities import prints
print("told", json.dumps([rank_zero_only.rank, prints.rank_zero_only.rank]))
"""


def test_each_rank_has_its_own(flow_home: Path, tmp_path: Path) -> None:
    python = trainers()
    (tmp_path / "train.py").write_text(_PROGRAM)
    words = ["run", "-N", "2", "--processes-per-node", "2", "--", "python", "train.py"]
    done = subprocess.run(
        [python, "-m", "flowlite.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = [json.loads(line.partition("told ")[2]) for line in done.stdout.splitlines()]
    assert sorted(told) == [[0, 0], [1, 1], [2, 0], [3, 1]]
    store = Store(flow_home / "state.db")
    (task,) = store.list_tasks()
    events = [str(each) for each in store.events(task.id)]
    assert not [each for each in events if "a Python of its own" in each], events
