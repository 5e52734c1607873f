"""What came of a node is on disk, with its name, before anybody may remove what the node holds."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.node.protocol import messages
from flowlite.provider import Instance, NodeSettings, Plan
from flowlite.state.store import Store
from flowlite.supervise.attempt.attempt import Attempt
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.outcome import End
from flowlite.supervise.process.journal import Journal
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.lifecycle import TaskEvent
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from tests.late_fetch import fetch
from tests.test_store import task

WROTE = {"r0.out": b"out\n" * 1000, "r0.err": b"err\n", "r0.result": b"result" * 1000}
SIZES = {name.partition(".")[2]: len(content) for name, content in WROTE.items()}
HERE = ["logs/a1.n0.r0.out", "logs/a1.n0.r0.err", "results/a1.r0.result", "logs", "results"]


class DiskNode(Node):
    """A node that is a directory here."""

    @property
    def connection(self) -> LocalConnection:
        return LocalConnection()

    def probe(self) -> Finding:
        return Finding(ProbeAnswer.ALIVE, "it is here", True)


@pytest.fixture
def paths(tmp_path: Path) -> TaskPaths:
    (tmp_path / "tasks").mkdir()
    made = TaskPaths(tmp_path, "t1")
    made.make()
    made.secrets.write_text("{}")
    return made


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, paths: TaskPaths) -> list[str]:
    """What was forced to disk, and what else was done, in order."""
    told: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        listed = os.listdir(name) if os.path.isdir(name) else []
        sync(descriptor)
        what = os.path.relpath(name, paths.directory)
        # Files are synced side by side.
        told.extend([what, *(f"{what} lists {each}" for each in listed)])

    monkeypatch.setattr(os, "fsync", fsync)
    return told


def node_home(tmp_path: Path) -> Path:
    home = tmp_path / "node"
    (home / "a1").mkdir(parents=True)
    for name, content in WROTE.items():
        (home / "a1" / name).write_bytes(content)
    return home


def collect(paths: TaskPaths, home: Path) -> End:
    settings = NodeSettings(home=str(home), python="python")
    node = DiskNode(None, Instance("n0", "t1"), settings, 0, 1)  # type: ignore[arg-type]
    plan = Plan("local", "this machine", 1, 1).to_json()
    attempt = Attempt(
        asked=TaskView.of(task("t1", plan=plan)),
        paths=paths,
        name="durable",
        attempt=1,
        nodes=[node],
        max_run_seconds=None,
        agent=(Path("/agent.pyz"), ""),
        threads=Threads(),
        on_event=lambda event: None,
        before_writing=lambda: None,
    )
    attempt._workers[0] = {"rank": 0, "node": 0, "code": 0, "sizes": SIZES}

    async def run() -> End:
        try:
            async with asyncio.timeout(60):
                return await attempt._collect(End(messages.DONE, ""))
        finally:
            await attempt.close()

    return asyncio.run(run())


def test_an_attempt_ends_when_all_that_came_is_on_disk(
    tmp_path: Path, paths: TaskPaths, done: list[str]
) -> None:
    end = collect(paths, node_home(tmp_path))
    assert end.outcome == messages.DONE
    assert set(HERE) <= set(done)
    # A directory has the names of files only once they are there.
    assert "results lists a1.r0.result" in done
    assert "logs lists a1.n0.r0.out" in done


def test_that_the_ranks_have_started_outlives_a_supervisor_that_dies_after_their_failure(
    flow_home: Path,
) -> None:
    """One that takes over then asks the leader how they ended, and brings nothing up again."""
    store = Store(flow_home / "state.db")
    store.create_task(task("t1"))
    lease = store.acquire_lease("t1", process_identity.owner(), 600)
    assert lease is not None

    def journal() -> Journal:
        return Journal(store, lease, store.get_task("t1"))

    roster = ["i-0", "i-1"]
    first = journal()
    first.step(TaskEvent.BEGIN, nodes=2)
    first.step(TaskEvent.LAUNCHED, nodes=2, attempt=1, roster=roster)
    assert not journal().has_started
    first.gang_event({"kind": "go", "seq": 1, "time": 1e9})
    assert first.has_started
    first.gang_event({"kind": "stopping", "outcome": "failed", "reason": "no", "seq": 2})
    # Here it is killed: how the gang ended is noted nowhere.
    second = journal()
    assert second.record.state == "stopping"
    assert second.has_started
    second.step(TaskEvent.RETRY, why="no", delay=0.0, attempt=2)
    second.step(TaskEvent.LAUNCHED, nodes=2, attempt=2, roster=roster)
    assert not second.has_started
    assert not journal().has_started


def test_what_may_not_be_on_disk_stays_on_its_node(
    tmp_path: Path, paths: TaskPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    home = node_home(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    end = collect(paths, home)
    assert end.outcome == messages.ERROR
    assert end.ended_well
    assert "may not be on disk: Input/output error" in end.reason
    ((node, files),) = [(each.node, dict(each.files)) for each in end.lacking]
    assert node == 0
    assert files == {f"r0.{name}": size for name, size in SIZES.items()}


def test_what_comes_later_is_on_disk_before_the_node_forgets_it(
    tmp_path: Path, paths: TaskPaths, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(home=str(node_home(tmp_path)), python="python")
    provider: Any = SimpleNamespace(
        node_settings=lambda plan, instance: settings,
        connect=lambda instance: LocalConnection(),
        forget=lambda instances: done.append("forget"),
    )
    found = fetch(paths, provider, {f"r0.{name}": size for name, size in SIZES.items()})
    assert found.is_here, found.problem
    assert done[-1] == "forget"
    assert set(HERE) <= set(done)


def test_the_cause_outlives_a_supervisor_whatever_words_are_in_it(flow_home: Path) -> None:
    """What is added to a reason for a time is a value, and is found in no text."""
    cause = "first failure: node 0, rank 0: its nodes are not gone yet: waiting for what is not here yet: 1"
    store = Store(flow_home / "state.db")
    store.create_task(task("t1", state="running", attempt=1, roster=["i-0"]))
    lease = store.acquire_lease("t1", process_identity.owner(), 600)
    assert lease is not None

    def journal() -> Journal:
        return Journal(store, lease, store.get_task("t1"))

    first = journal()
    first.gang_event(
        {"kind": "fencing", "text": "the nodes cannot be reached since noon, says rank 3"}
    )
    first.gang_event({"kind": "cut_off", "since": 1e9, "refusal": ""})
    assert "cannot be reached since" in journal().record.reason
    journal().gang_event({"kind": "cut_off", "since": None, "refusal": ""})
    assert store.get_task("t1").reason == "the nodes cannot be reached since noon, says rank 3"
    second = journal()
    second.gang_event({"kind": "cut_off", "since": None, "refusal": ""})
    assert store.get_task("t1").reason == "the nodes cannot be reached since noon, says rank 3"
    second.step(TaskEvent.FAILURE, why=cause, outcome="failed")
    second.not_gone("EC2 does not answer", 5)
    third = journal()
    assert third.record.reason == (
        f"{cause}; its nodes are not gone yet: EC2 does not answer, next try in 5 s"
    )
    assert third.last_reason() == cause
    third.gang_event({"kind": "collecting", "text": "results (4 kB)"})
    third.cancelling()
    assert journal().last_reason() == cause
    assert store.get_task("t1").reason == f"{cause}; the cancellation came after its end"


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (messages.LOST, "node 0 (i-0), the leader, is lost"),
        (messages.DONE, "all ranks have ended"),
    ],
)
def test_what_is_fetched_is_told_with_how_the_gang_has_ended(
    flow_home: Path, outcome: str, told: str
) -> None:
    store = Store(flow_home / "state.db")
    store.create_task(task("t1", state="running", attempt=1, roster=["i-0"]))
    lease = store.acquire_lease("t1", process_identity.owner(), 600)
    assert lease is not None
    reason = told if outcome == messages.LOST else ""
    event = {"kind": "collecting", "text": "results (4 kB)", "outcome": outcome, "reason": reason}
    Journal(store, lease, store.get_task("t1")).gang_event(event)
    record = store.get_task("t1")
    assert record.state == "stopping"
    assert record.reason == f"{told}; waiting for what is not here yet: results (4 kB)"


def test_a_long_refusal_is_told_with_its_advice(flow_home: Path) -> None:
    store = Store(flow_home / "state.db")
    store.create_task(task("t1", state="stopping", outcome="done"))
    lease = store.acquire_lease("t1", process_identity.owner(), 600)
    assert lease is not None
    refusal = f"ec2:TerminateInstances: UnauthorizedOperation {'x' * 900}. `flow aws policy` prints the least policy"
    Journal(store, lease, store.get_task("t1")).not_gone(refusal, 300.0)
    reason = store.get_task("t1").reason
    assert "ec2:TerminateInstances" in reason
    assert reason.endswith("`flow aws policy` prints the least policy, next try in 5 min")
    assert len(reason) < 500
