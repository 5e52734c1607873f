"""What the journal of a task records, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.output.redact import Mask
from flowlite.state import clock
from flowlite.state.records import InstanceRecord
from flowlite.state.store import Lease, Store
from flowlite.supervise.process import journal as journals
from flowlite.supervise.process.journal import Journal
from flowlite.supervise.record.lifecycle import TaskEvent
from tests.test_store import task

CREATED = 1_700_000_000.0
ROSTER = ["i-0", "i-1"]


class Scene:
    """A task and its journal; both clocks stand still until the test sets them."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = CREATED
        monkeypatch.setattr(clock, "now", lambda home=None: self.now)
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self.store = Store(path / "state.db")
        self.store.create_task(task("t1", created_at=CREATED))
        lease = self.store.acquire_lease("t1", "me", 600)
        assert lease is not None
        self.lease: Lease = lease
        self.journal = self.again()

    def again(self, mask: Mask | None = None) -> Journal:
        return Journal(self.store, self.lease, self.store.get_task("t1"), mask)

    def start(self, attempt: int = 1, roster: list[str] = ROSTER) -> None:
        self.journal.step(
            TaskEvent.LAUNCHED, nodes=len(roster), attempt=attempt, roster=list(roster)
        )

    def events(self, kind: str) -> list[str]:
        return [each.text for each in self.store.events("t1") if each.kind == kind]

    @property
    def reason(self) -> str:
        return self.store.get_task("t1").reason


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    made.journal.step(TaskEvent.BEGIN, nodes=2)
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("event", "began"),
    [
        ({}, CREATED + 100),
        # The barrier was opened before its event arrived, and never before the task was made.
        ({"age": 40.0}, CREATED + 60),
        ({"age": 4000.0}, CREATED),
    ],
)
def test_run_time_counts_from_the_barrier(
    scene: Scene, event: dict[str, Any], began: float
) -> None:
    scene.start()
    scene.now += 100
    scene.journal.gang_event({"kind": "go", "seq": 1, **event})
    assert scene.store.get_task("t1").started_at == began


def test_run_time_counts_from_the_first_attempt(scene: Scene) -> None:
    scene.start()
    scene.journal.gang_event({"kind": "go", "seq": 1})
    began = scene.store.get_task("t1").started_at
    scene.journal.step(TaskEvent.FAILURE, why="no")
    scene.journal.step(TaskEvent.RETRY, why="no", delay=0.0, attempt=2)
    scene.start(attempt=2)
    scene.now += 500
    scene.journal.gang_event({"kind": "go", "seq": 1})
    assert scene.store.get_task("t1").started_at == began
    # A second event of the same kind changes nothing.
    scene.journal.gang_event({"kind": "go", "seq": 1})
    assert scene.store.get_task("t1").state == "running"


def test_the_first_failure_is_the_reason_of_its_attempt_only(scene: Scene) -> None:
    first = {"kind": "first_failure", "node": 1, "rank": 3, "code": 7}
    stopping = {"kind": "stopping", "outcome": "failed", "reason": "said by the leader", "seq": 9}
    scene.start()
    scene.journal.gang_event(first)
    scene.journal.gang_event(first)
    scene.journal.gang_event(stopping)
    assert scene.reason.startswith("first failure: node 1, rank 3: ")
    assert [text == scene.reason for text in scene.events("first_failure")] == [True]
    scene.journal.step(TaskEvent.RETRY, why="no", delay=0.0, attempt=2)
    scene.start(attempt=2)
    scene.journal.gang_event(stopping)
    assert scene.reason == "said by the leader"


def test_workers_that_failed_by_themselves_are_told_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_MOST_FAILURES", 2)
    scene.start()
    for rank, fate in enumerate(
        [{"code": 0}, {"code": 1, "stopped": True}, {"code": 1}, {"code": 2}, {"code": 3}]
    ):
        scene.journal.gang_event({"kind": "worker", "node": 0, "rank": rank, **fate})
    assert scene.events("worker") == []
    scene.journal.flush()
    scene.journal.flush()
    assert [text.split(":")[0] for text in scene.events("worker")] == [
        "node 0, rank 2",
        "node 0, rank 3",
    ]


def test_an_event_that_is_recorded_already_is_not_recorded_by_the_next_supervisor(
    scene: Scene,
) -> None:
    event = {"kind": "lost", "rank": 1, "instance": "i-1", "why": "silent", "seq": 4}
    scene.start()
    scene.journal.gang_event(event)
    scene.again().gang_event(event)
    scene.again().gang_event({**event, "seq": 5})
    assert scene.events("lost") == ["node 1 (i-1) is lost: silent"] * 2


def test_what_nodes_say_without_end_is_kept_up_to_a_bound(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_MOST_KEPT", 2000)
    scene.journal = scene.again()
    scene.start()
    for seq in range(40):
        said = {"kind": "warning", "text": "x" * 100, "seq": seq}
        scene.journal.gang_event(said)
    told = scene.events("warning")
    assert 5 < len(told) < 20
    assert told[-1].startswith("its nodes have said so much")
    assert sum("said so much" in text for text in told) == 1


@pytest.mark.parametrize(
    ("roster", "joined", "shown"),
    [
        (ROSTER, [], "0 of 2 nodes joined; waiting for node 0 (i-0), 1 (i-1)"),
        (ROSTER, [1], "1 of 2 nodes joined; waiting for node 0 (i-0)"),
        (ROSTER, [0, 1], "2 of 2 nodes joined"),
        (list("abc"), [], "0 of 3 nodes joined; waiting for node 0 (a), 1 (b), 2 (c)"),
        (list("abcd"), [], "0 of 4 nodes joined; waiting for node 0 (a), 1 (b), 2 (c), …"),
    ],
)
def test_who_has_not_joined_is_named(
    scene: Scene, roster: list[str], joined: list[int], shown: str
) -> None:
    scene.start(roster=roster)
    for rank in joined:
        scene.journal.gang_event({"kind": "joined", "rank": rank})
    before = scene.reason
    scene.journal.tell_progress()
    assert scene.reason == before, "a moment after the start"
    scene.now += 1.0
    scene.journal.tell_progress()
    assert scene.reason == shown
    scene.journal.gang_event({"kind": "joined", "rank": 0})
    scene.journal.tell_progress()
    assert scene.reason == shown, "a moment after that"
    scene.now += 5.0
    scene.journal.tell_progress("sending the project: 3 of 4 GB")
    assert scene.reason == "sending the project: 3 of 4 GB"


def test_progress_does_not_hide_that_nobody_can_be_reached_or_the_cancellation(
    scene: Scene,
) -> None:
    scene.start()
    scene.journal.gang_event({"kind": "cut_off", "since": CREATED, "refusal": ""})
    scene.now += 10.0
    scene.journal.tell_progress()
    assert scene.reason.startswith("the nodes cannot be reached since")
    scene.journal.gang_event({"kind": "cut_off", "since": None, "refusal": ""})
    scene.now += 10.0
    scene.journal.tell_progress()
    assert scene.reason.startswith("0 of 2 nodes joined")
    scene.journal.cancelling()
    shown = scene.reason
    assert shown.startswith("cancelled; until then: 0 of 2 nodes joined")
    scene.now += 10.0
    scene.journal.gang_event({"kind": "joined", "rank": 0})
    scene.journal.tell_progress()
    assert scene.reason == shown


def test_what_is_waited_for_is_written_when_it_changes_and_not_too_often(scene: Scene) -> None:
    writes = len(scene.store.events("t1"))
    scene.journal.waiting("no room")
    scene.now += 10.0
    scene.journal.waiting("no room")
    assert len(scene.store.events("t1")) == writes + 1
    scene.journal.waiting("still none")
    scene.now += 1.0
    scene.journal.waiting("no quota")
    assert scene.reason == "still none"
    scene.now += 5.0
    scene.journal.tell_progress()
    assert scene.reason == "no quota"


def test_the_history_tells_how_a_wait_began_and_how_far_it_has_come(scene: Scene) -> None:
    users = ["train (tk3), eval (tk4)", "train (tk3)", "train (tk3), tune (tk9) and 2 more"]
    for before in range(60, 0, -1):
        scene.now += 10.0
        ahead = f"in use by {users[before % 3]}): {before} before it; starts by 10:{before - 1:02}"
        scene.journal.waiting(f"waiting for a place (8 x h100, {ahead}")
    scene.start()
    scene.journal.gang_event({"kind": "go"})
    for here in range(1, 60):
        scene.now += 10.0
        size = "900 MB" if here == 1 else f"{here}.5 GB"
        scene.journal.gang_event(
            {
                "kind": "collecting",
                "text": f"outputs: {size} of 60 GB are here",
                "outcome": "done",
                "reason": "",
            }
        )
    told = [each.text for each in scene.store.events("t1")]
    assert [text for text in told if "before it" in text] == [
        "waiting for a place (8 x h100, in use by train (tk3), eval (tk4)): 60 before it; starts by 10:59",
        "waiting for a place (8 x h100, in use by train (tk3)): 1 before it; starts by 10:00",
    ]
    collected = [text for text in told if "are here" in text]
    assert ["900 MB of" in text for text in collected] == [True, False]
    assert "59.5 GB of 60 GB" in collected[1]
    assert scene.reason == told[-1] == collected[1]
    # The next supervisor knows, as this one, how the gang has ended.
    assert scene.again().last_reason() == scene.journal.last_reason()


def test_what_was_noted_in_this_attempt(scene: Scene) -> None:
    scene.start()
    scene.journal.note("warning", "w", {"collected": True, "no": False})
    asked = [
        ("warning", "collected"),
        ("warning", "no"),
        ("warning", "else"),
        ("warm", "collected"),
    ]
    assert [scene.again().noted(*each) for each in asked] == [True, False, False, False]
    scene.journal.step(TaskEvent.FAILURE, why="no")
    scene.journal.step(TaskEvent.RETRY, why="no", delay=0.0, attempt=2)
    assert not scene.journal.noted("warning", "collected")


def test_nodes_that_are_kept_and_charged_are_told(scene: Scene) -> None:
    def row(name: str, state: str, ended: float | None) -> InstanceRecord:
        return InstanceRecord(name, "t1", "cloud", state, 2.0, CREATED, {}, 0, ended)

    scene.journal.kept_warm([row("a", "ended", CREATED), row("b", "warm", None)])
    assert scene.events("warm") == []
    warm = [row("c", "warm", CREATED + 60), row("d", "warm", CREATED + 90)]
    scene.journal.kept_warm([row("a", "ended", CREATED), *warm])
    scene.journal.kept_warm(warm[:1])
    assert [text.split(" until")[0] for text in scene.events("warm")] == [
        "2 nodes are kept warm",
        "1 node is kept warm",
    ]
    (first, _) = [each for each in scene.store.events("t1") if each.kind == "warm"]
    assert (first.data["instances"], first.data["until"]) == (["c", "d"], CREATED + 90)


def test_nothing_that_is_recorded_has_a_secret_in_it(scene: Scene, tmp_path: Path) -> None:
    secret = "hunter2-correct-horse"
    scene.start()
    journal = scene.again(Mask([secret]))
    journal.note("warning", f"said {secret}", {"deep": [{"text": secret}]})
    journal.gang_event({"kind": "fencing", "text": f"key {secret}"})
    lost = {"kind": "lost", "rank": 1, "instance": "i-1", "why": secret, "seq": 4}
    journal.gang_event(lost)
    failed = {"kind": "first_failure", "node": 1, "rank": 3, "code": 7}
    failure = {"type": "ValueError", "message": secret, "text": secret}
    journal.gang_event({**failed, "failure": failure})
    journal.gang_event({"kind": "worker", "node": 1, "rank": 3, "code": 7, "failure": failure})
    journal.flush()
    journal.gang_event({"kind": "stopping", "outcome": "failed", "reason": secret, "seq": 9})
    journal.not_gone(secret, 5.0)
    scene.store.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)
