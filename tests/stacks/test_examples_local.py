"""The examples with training stacks run on this machine, as docs/stacks shows them."""

from __future__ import annotations

import ast
import math
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.node.forkserver import registry
from flowlite.node.system import runtime_dir
from tests.helpers import assert_no_process_left
from tests.stacks.environments import trainers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 400.0
Run = Callable[..., str]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def run(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`flow run --keep-warm` in the environment of the stacks; gives what was printed, without the labels of lines."""
    python = trainers()
    # Sockets and data sets of its own.
    (flow_home / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(flow_home / "tmp"))
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path / "checkpoints"))

    def run(program: str, *arguments: object) -> str:
        words = ["run", "--keep-warm", "10m", f"{EXAMPLES}/{program}", *map(str, arguments)]
        done = subprocess.run(
            [python, "-m", "flowlite.cli", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        # What all of them import, wandb among it, is imported once for all ranks of a node.
        assert "a Python of its own" not in (told := events(flow_home)), told
        return re.sub(
            r"^\[Node \d+(?:, rank \d+)?\] \[\d\d:\d\d:\d\d\] ", "", done.stdout, flags=re.MULTILINE
        )

    yield run
    registry.end(registry.all_of(runtime_dir.find()))


def events(home: Path) -> str:
    """What happened to the newest task, as `flow status TASK` shows it."""
    from flowlite.state.store import Store

    store = Store(home / "state.db")
    task = max(store.list_tasks(), key=lambda each: each.created_at)
    return "\n".join(str(each) for each in store.events(task.id))


def returned(said: str) -> Any:
    """What rank 0 returned: the last lines."""
    return ast.literal_eval(said[said.rindex("\n{") :].strip())


def test_the_examples_train_and_go_on(run: Run, tmp_path: Path) -> None:
    """One test, since importing OpenCLIP takes more than all that is trained here: they share what is imported."""
    open_clip(run, tmp_path / "checkpoints" / "clip")
    open_flamingo(run)
    fsdp2(run)


def open_clip(run: Run, checkpoints: Path) -> None:
    first = run("open_clip/train.py::train", "--epochs", 1)
    for rank in range(4):
        assert f"(global: {rank}, local {rank % 2}), total 4." in first
    assert returned(first)["world"] == 4
    assert [path.name.split(".")[0] for path in checkpoints.rglob("epoch_*.pt")] == ["epoch_1"]

    # Another task, whose nodes have nothing of the first.
    second = run("open_clip/train.py::train", "--epochs", 6)
    resumed = "=> resuming checkpoint '/flowlite-clip/digits/checkpoints/epoch_1.pt' (epoch 1)"
    assert second.count(resumed) == 4
    assert "Start epoch 1" in second
    assert "Start epoch 0" not in second
    assert returned(second)["mean_loss"] < returned(first)["mean_loss"]
    # A model that takes all 4 x 8 images for equally likely has learnt nothing.
    assert returned(second)["mean_loss"] < math.log(32)


@pytest.mark.hours
def test_open_clips_first_loss_tells_one_gang_from_many(run: Run) -> None:
    alone = 2.7726  # ln(16), the batch of one rank
    said = run("open_clip/train.py::rehearse")
    assert "first loss 4.1589 = ln(64): 4 ranks in one gang" in said
    assert f"{alone}" not in said


def open_flamingo(run: Run) -> None:
    trained = returned(run("open_flamingo/train.py::train"))
    assert (trained["world"], trained["began"]) == (4, 0)
    assert [each[:2] for each in trained["ranks"]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    # Each rank had images of its own, and all have the same weights in the end.
    assert len({weights for _, _, weights in trained["ranks"]}) == 1


def fsdp2(run: Run) -> None:
    first = returned(run("axolotl/fsdp2.py::train"))
    sizes = [size for _, size in first["shards"]]
    assert len(sizes) == 4
    assert sum(sizes) == first["weights"]
    assert max(sizes) < first["weights"] / 2
    second = returned(run("axolotl/fsdp2.py::train", "--steps", 12))
    assert second["began"] == 8
    assert second["loss"] < first["loss"]


def test_a_process_that_copies_does_not_keep_a_function_that_failed(flow_home: Path) -> None:
    """OpenCLIP's `--remote-sync` is such a process: Python would wait for it, and the other ranks for ever."""

    def train() -> None:
        import multiprocessing
        import os
        import time

        if os.environ["RANK"] == "0":
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start()
            raise RuntimeError("out of memory")
        time.sleep(3600)

    task = FlowApp().function(num_instances=2)(train).spawn()
    with pytest.raises(RuntimeError, match="out of memory"):
        task.result(timeout=90)
    assert_no_process_left(task.id)
