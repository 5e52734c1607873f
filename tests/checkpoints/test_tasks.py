"""`checkpoint=` as users have it: tasks of the local provider, started again after a crash and on fresh nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from flowlite import Checkpoint, FlowApp, SpecError, TaskConfig
from flowlite.api.task import Task
from tests.checkpoints.remote import newest
from tests.helpers import eventually

pytestmark = pytest.mark.usefixtures("flow_home")

WHOLE = 100_000


def train(steps: int, crash_at: int, kept: str = "") -> tuple[int, int]:
    """Goes on from the last step; crashes once. Gives the step it began from, and the one it ended at.

    With `kept`, the place where checkpoints go, the step before the crash is there when that comes.
    """
    import os
    import signal
    import time
    from pathlib import Path

    here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
    done = sorted(int(path.stem) for path in here.glob("*.pt"))
    began = done[-1] if done else 0
    for step in range(began + 1, steps + 1):
        if os.environ["RANK"] == "0":
            if kept and step == crash_at and os.environ["FLOW_ATTEMPT"] == "1":
                before = f"{step - 1}.pt"
                eventually(lambda name=before: name in newest(Path(kept)))
            with open(here / f"{step}.pt", "wb", buffering=0) as file:
                for _ in range(10):
                    file.write(bytes([step]) * (100_000 // 10))
                    if step == crash_at and os.environ["FLOW_ATTEMPT"] == "1":
                        os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.3)
    return began, steps


def texts(task: Task[object], kind: str) -> list[str]:
    return [event.text for event in task.events() if event.kind == kind]


@pytest.mark.needs("own-mounts")
def test_a_crash_in_the_middle_of_a_checkpoint_costs_that_checkpoint_only(tmp_path: Path) -> None:
    app = FlowApp()
    sync = tmp_path / "kept"
    checkpoint = Checkpoint("/flowlite-ckpt", str(sync), every=0.2)
    resumable = app.function(num_instances=2, checkpoint=checkpoint, retries=1)(train)
    task = resumable.spawn(9, 8, str(sync))
    results = task.results()
    assert results[0][1] == 9
    assert results[0][0] == 7, "the eighth was cut off, and is not taken for whole"
    assert results[1] in (results[0], (6, 9), (5, 9)), "node 1 was brought the newest set"
    assert set(newest(sync)) == {f"{step}.pt" for step in range(1, 10)}
    assert all(len(data) == WHOLE for data in newest(sync).values())
    assert texts(task, "checkpoint")[-1].endswith(f"checkpoint: 9 files, 900 kB at {sync}")


@pytest.mark.needs("own-mounts")
def test_another_task_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    app = FlowApp()
    options = {"path": "/flowlite-ckpt", "sync": str(tmp_path / "kept"), "every": 60.0}
    resumable = app.function(checkpoint=options)(train)
    assert resumable.remote(2, 0) == (0, 2)
    assert resumable.remote(4, 0) == (2, 4)


@pytest.mark.needs("own-mounts")
def test_a_cancelled_task_leaves_its_last_checkpoint(tmp_path: Path) -> None:
    app = FlowApp()
    options = {"path": "/flowlite-ckpt", "sync": str(tmp_path / "kept"), "every": 600.0}

    @app.function(checkpoint=options)
    def save_when_asked() -> None:
        import signal
        import sys
        import time
        from pathlib import Path

        def save(*_: object) -> None:
            Path("/flowlite-ckpt/last.pt").write_bytes(b"x" * 100_000)
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(60)

    task = save_when_asked.spawn()
    eventually(lambda: "ready" in str(task.logs()))
    task.cancel()
    task.wait()
    assert task.status == "cancelled"
    assert newest(tmp_path / "kept") == {"last.pt": b"x" * WHOLE}


@pytest.mark.needs("own-mounts")
@pytest.mark.parametrize("last", [0, 1])
def test_a_checkpoint_on_a_volume_is_that_of_all_nodes(tmp_path: Path, last: int) -> None:
    app = FlowApp()

    @app.function(
        num_instances=2,
        volumes={"/flowlite-shared": "shared"},
        checkpoint={"path": "/flowlite-shared/ckpt", "sync": str(tmp_path / "kept"), "every": 60.0},
    )
    def save(last: int) -> None:
        import os
        import time
        from pathlib import Path

        here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
        rank = int(os.environ["RANK"])
        if rank == last:
            first = here / f"{1 - last}.pt"
            while not first.exists():
                time.sleep(0.01)
            # Long after the worker of the other node has ended.
            time.sleep(4)
        (here / f"{rank}.pt").write_bytes(b"x")

    save.remote(last)
    assert set(newest(tmp_path / "kept")) == {"0.pt", "1.pt"}


@pytest.mark.needs("own-mounts")
def test_a_task_whose_last_copy_was_not_made_is_not_completed(
    tmp_path: Path, flow_home: Path
) -> None:
    """All workers have ended well, and then the agent of the leader dies, which copies for all nodes."""
    app = FlowApp()
    kept = tmp_path / "kept"

    @app.function(
        num_instances=2,
        volumes={"/flowlite-shared": "shared"},
        checkpoint={
            "path": "/flowlite-shared/ckpt",
            "sync": str(kept),
            "every": 600.0,
        },
    )
    def save(kept: str) -> None:
        import os
        import time
        from pathlib import Path

        rank = os.environ["RANK"]
        (Path(os.environ["FLOW_CHECKPOINT_DIR"]) / f"{rank}.pt").write_bytes(b"x")
        if rank == "0":
            # The sidecar registers there while the workers start.
            while not list(Path(kept).glob("sets/*/claim")):
                time.sleep(0.01)
            # Nothing can be copied there any more.
            os.rename(kept, f"{kept}.away")
            Path(kept).write_text("in the way")

    task = save.spawn(str(kept))
    nodes = flow_home / "tasks" / task.id / "nodes"
    # The sidecar has tried, so all workers have ended and been reported.
    log = eventually(lambda: [f for f in nodes.glob("*/a1/agent.log") if "kept" in f.read_text()])
    assert task.status == "running", "it waits for the last copy"
    pid = json.loads((log[0].parent / "agent.pid").read_bytes())["pid"]
    os.kill(pid, signal.SIGKILL)
    task.wait()
    assert task.status == "failed"
    assert "every rank ended well, but the last copy of the checkpoints" in task.reason
    assert str(kept) in task.reason


def test_what_is_wrong_is_named_before_anything_starts() -> None:
    with pytest.raises(SpecError, match=r"checkpoint\.sync: is missing"):
        TaskConfig(command="x", checkpoint={"path": "/ckpt"})  # type: ignore[typeddict-item]
    with pytest.raises(SpecError, match=r"checkpoint\.evry: unknown option; did you mean 'every'"):
        TaskConfig(command="x", checkpoint={"path": "/c/d", "sync": "/x/y", "evry": 1})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(SpecError, match="lie in each other"):
        TaskConfig(command="x", checkpoint={"path": "/ckpt", "sync": "/ckpt/copy"})
    with pytest.raises(SpecError, match=r"meets the mount '/data'"):
        TaskConfig(
            command="x",
            mounts={"/data": "s3://bucket"},
            checkpoint={"path": "/data/ckpt", "sync": "/x/y"},
        )
    with pytest.raises(SpecError, match="every node sees the same files"):
        TaskConfig(
            command="x",
            num_instances=2,
            volumes={"/v": "v"},
            checkpoint={"path": "/v", "sync": "/x/y", "nodes": "all"},
        )
    config = TaskConfig(command="x", checkpoint=Checkpoint("/ckpt", "s3://bucket/p/"))
    assert TaskConfig.from_json(config.to_json()) == config
    assert config.checkpoint is not None
    assert config.checkpoint.sync == "s3://bucket/p"


@pytest.mark.needs("own-mounts")
def test_killing_the_agent_costs_what_was_not_copied_and_nothing_else(tmp_path: Path) -> None:
    """The supervisor brings a new attempt up; what the killed agent had not seen finished is not believed."""
    app = FlowApp()
    sync = tmp_path / "kept"
    checkpoint = {"path": "/flowlite-ckpt", "sync": str(sync), "every": 0.2}

    @app.function(checkpoint=checkpoint, retries=1)
    def slow() -> list[str]:
        import os
        import time
        from pathlib import Path

        here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
        found = sorted(path.name for path in here.iterdir())
        if os.environ["FLOW_ATTEMPT"] == "1":
            (here / "1.pt").write_bytes(b"1" * 100_000)
            with open(here / "2.pt", "wb", buffering=0) as file:
                while True:
                    file.write(b"2")
                    time.sleep(0.05)
        return found

    task = slow.spawn()
    eventually(lambda: set(newest(sync)) == {"1.pt"})
    home = Path(os.environ["FLOW_HOME"]) / "tasks" / task.id / "nodes"
    import json

    agent = json.loads(next(home.glob("*/a1/agent.pid")).read_bytes())
    os.kill(agent["pid"], signal.SIGKILL)
    assert task.result() == ["1.pt"], "what was not finished is in another directory"
    assert set(newest(sync)) == {"1.pt"}


@pytest.mark.needs("own-mounts")
def test_fresh_nodes_get_what_is_there(tmp_path: Path) -> None:
    app = FlowApp()
    kept = tmp_path / "kept"
    options = {"path": "/flowlite-ckpt", "sync": str(kept)}
    resumable = app.function(checkpoint=options)(train)
    assert resumable.remote(2, 0) == (0, 2)
    copy = tmp_path / "copy"
    shutil.copytree(kept, copy)
    moved = app.function(num_instances=3, checkpoint={**options, "sync": str(copy)})(train)
    assert moved.spawn(2, 0).results() == [(2, 2)] * 3


def test_the_calls_of_a_sweep_do_not_share_a_place() -> None:
    """Each would go on from the weights of another."""
    options = {"path": "/flowlite-ckpt", "sync": "/tmp/kept"}
    swept = FlowApp().function(checkpoint=options)(train)
    for results in (
        lambda: swept.starmap([(1, 2), (3, 4)]),
        lambda: swept.starmap(iter([(1, 2)])),
        lambda: swept.starmap.aio([(1, 2), (3, 4)]),
    ):
        with pytest.raises(SpecError, match=r"copy their checkpoints to /tmp/kept"):
            results()
    assert list(swept.starmap([])) == []
