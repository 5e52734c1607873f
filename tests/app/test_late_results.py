"""What nodes had kept of an ended task is recorded as here by whoever fetches it, and is fetched once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite import provider as providers
from flowlite.api import late_results
from flowlite.api.session import Session, open_session
from flowlite.connect.local import LocalConnection
from flowlite.provider import Instance
from flowlite.state.store import TaskRecord
from tests.gangs import shell, submit
from tests.helpers import eventually

TEXT = "what came late\n"


class Kept:
    """A failed task whose node has kept the log of its rank, and answers when it is let to."""

    def __init__(
        self, flow_home: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, *, well: bool
    ) -> None:
        gang = submit(flow_home, shell("exit 3"))
        self.record: TaskRecord = gang.end("failed")
        self.session: Session = open_session()
        (row,) = self.session.store.instances(gang.id)
        self.forgotten: list[str] = []
        self.answers = threading.Event()
        (directory / "a1").mkdir(parents=True, mode=0o700)
        (directory / "a1" / "r0.out").write_text(TEXT)
        node = {"node": 0, "instance": row.id, "files": {"r0.out": len(TEXT)}, "kept": True}
        told = {"attempt": 1, "nodes": [node], "ended_well": well}
        self.session.store.add_event(gang.id, "lacking", "not all is here", told)

        def connect(_: Instance) -> LocalConnection:
            assert self.answers.wait(30)
            return LocalConnection()

        there: Any = SimpleNamespace(
            node_settings=lambda *_: SimpleNamespace(home=str(directory)),
            connect=connect,
            forget=lambda instances: self.forgotten.extend(each.id for each in instances),
        )
        monkeypatch.setattr(providers, "provider_of_task", lambda *_: there)

    def is_recorded(self) -> bool:
        told = late_results.lacking(self.record, self.session.store.events(self.record.id))
        return told is not None and not told.nodes


Make = Callable[[bool], Kept]


@pytest.fixture
def kept(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda well: Kept(flow_home, tmp_path / "node", monkeypatch, well=well)


def test_what_comes_after_the_wait_is_recorded_as_here(
    kept: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_results, "_AT_ONCE", 0.0)
    scene = kept(False)
    (problem,) = late_results.bring(scene.session, scene.record)
    assert "it does not answer at once" in problem
    scene.answers.set()
    eventually(scene.is_recorded, timeout=20)
    assert len(scene.forgotten) == 1
    assert late_results.bring(scene.session, scene.record) == []


def test_what_another_process_has_fetched_meanwhile_is_here(kept: Make) -> None:
    scene = kept(True)
    found: list[list[str]] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(late_results.bring(scene.session, scene.record))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    scene.answers.set()
    for thread in threads:
        thread.join(30)
    assert found == [[], []]
    assert len(scene.forgotten) == 1
