"""Sending the project: to a node of this machine, whole and only what is of its task."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.bundle.project_files import list_files
from flowlite.bundle.project_snapshot import take_snapshot
from flowlite.connect.local import LocalConnection
from flowlite.errors import ProviderError
from flowlite.supervise.attempt import project
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.record.paths import TaskPaths
from tests.helpers import put_agent


class Ground:
    """A project, a task that has a snapshot of it, and nodes on this machine."""

    def __init__(self, home: Path, directory: Path) -> None:
        self.root, self.nodes = directory / "work", directory / "nodes"
        self.root.mkdir()
        self.paths = TaskPaths(home, "t1")
        self.paths.make()
        self.agent = build_agent_zip(home)

    def snapshot(self) -> dict[str, Any]:
        target = self.paths.bundle / "project.json"
        sha256 = take_snapshot(self.paths.home, list_files(str(self.root)), {}, target)
        return {"manifest": str(target), "sha256": sha256, "start": "."}

    def node(self, name: str) -> Node:
        import sys

        home = self.nodes / name
        settings = SimpleNamespace(
            home=str(home), cache=str(self.nodes / "blobs"), python=sys.executable
        )
        found = SimpleNamespace(
            settings=settings,
            connection=LocalConnection(),
            agent=f"{home}/agent.pyz",
            program=(sys.executable, "-I", "-S", f"{home}/agent.pyz"),
            name=name,
            rank=0,
        )
        return cast(Node, found)

    def bring(self, name: str, what: dict[str, Any]) -> Path:
        progress = project.ProjectProgress()
        project.bring(self.node(name), what, self.agent, self.paths, progress)
        assert str(progress) == ""
        return self.nodes / name / "project"


@pytest.fixture
def ground(flow_home: Path, tmp_path: Path) -> Ground:
    put_agent(flow_home)
    return Ground(flow_home, tmp_path)


def test_large_and_small_files_come_and_are_sent_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (ground.root / "large").write_bytes(b"x" * 2_000_000)
    (ground.root / "small").write_text("1")
    what = ground.snapshot()
    for name in ("one", "two"):
        assert {p.name for p in ground.bring(name, what).iterdir()} == {"large", "small"}
    said = capsys.readouterr()
    assert (said.out + said.err).count("sent 2 files of the project") == 1
    project.forget_packs(ground.paths)
    assert [p.name for p in ground.paths.bundle.iterdir()] == ["project.json"]


def test_progress_names_the_nodes_that_lack_most() -> None:
    progress = project.ProjectProgress()
    for rank in range(5):
        progress.begin(rank, 1 + rank, 1000 * (rank + 1))
    progress.moved(4, 4900)
    progress.moved(3, 2000)
    assert str(progress) == (
        "sending the project: 3 files to node 2, 0 B of 3 kB; 2 files to node 1, 0 B of 2 kB; "
        "4 files to node 3, 2 kB of 4 kB; and 2 more nodes"
    )
    for rank in range(5):
        progress.end(rank)
    assert str(progress) == ""


def test_a_damaged_content_on_the_node_is_sent_again(ground: Ground) -> None:
    (ground.root / "small").write_text("right")
    what = ground.snapshot()
    ground.bring("one", what)
    blob = ground.nodes / "blobs" / hashlib.sha256(b"right").hexdigest()
    blob.write_text("wrong")
    assert (ground.bring("two", what) / "small").read_text() == "right"


def test_a_content_that_was_damaged_here_never_arrives(ground: Ground) -> None:
    (ground.root / "small").write_text("right")
    what = ground.snapshot()
    (ground.paths.home / "files" / hashlib.sha256(b"right").hexdigest()).write_text("wrong")
    with pytest.raises(OSError, match="it was changed on this machine"):
        ground.bring("one", what)
    assert not (ground.nodes / "one/project").exists()


@pytest.mark.parametrize(
    "lacking", [[["../state.db", 1]], [["f" * 64, 1]], [[]], [7], [[hashlib.sha256().hexdigest()]]]
)
def test_a_node_gets_nothing_that_is_not_of_its_task(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, lacking: list[Any]
) -> None:
    (ground.root / "small").write_text("1")
    what = ground.snapshot()
    # A content of another task is there as well.
    (ground.paths.home / "files" / ("f" * 64)).write_text("of another task")
    monkeypatch.setattr(project, "_ask", lambda *_: {"lacking": lacking})
    with pytest.raises(ProviderError, match="no content of the project"):
        ground.bring("one", what)
    assert not (ground.nodes / "blobs" / ("f" * 64)).exists()


def test_a_node_that_cannot_make_it_is_named_with_the_reason(ground: Ground) -> None:
    (ground.root / "small").write_text("1")
    what = ground.snapshot()
    (ground.nodes / "one").mkdir(parents=True)
    (ground.nodes / "one/project").write_text("in the way")
    with pytest.raises(ProviderError, match="the working directory cannot be made"):
        ground.bring("one", what)
