"""What a node has kept of an ended task, and `flow result` brings later, when the node lies about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.api.late_results import _Fetch
from flowlite.connect.local import LocalConnection
from flowlite.provider import NodeSettings
from flowlite.supervise.record.paths import TaskPaths
from flowlite.testing.hosts.root import USER_ID
from tests.components import need
from tests.late_fetch import fetch

WROTE = {"r0.out": b"out\n" * 1000, "r0.err": b"err\n", "r0.result": b"result" * 1000}
SIZES: dict[str, int | None] = {name: len(content) for name, content in WROTE.items()}


class Kept:
    """A node that is a directory here, and what was brought of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "node"
        self.attempt = self.home / "a1"
        self.attempt.mkdir(parents=True, mode=0o700)
        for name, content in WROTE.items():
            (self.attempt / name).write_bytes(content)
        (directory / "flow" / "tasks").mkdir(parents=True)
        self.paths = TaskPaths(directory / "flow", "t1")
        self.paths.make()
        self.paths.secrets.write_text("{}")
        self.forgotten = False
        self.connection: Any = LocalConnection()

    def bring(self, sizes: dict[str, int | None] = SIZES) -> _Fetch:
        settings = NodeSettings(home=str(self.home), python="python")

        def forget(instances: object) -> None:
            self.forgotten = True

        provider: Any = SimpleNamespace(
            node_settings=lambda plan, instance: settings,
            connect=lambda instance: self.connection,
            forget=forget,
        )
        found = fetch(self.paths, provider, sizes)
        assert self.forgotten is found.is_here
        return found

    @property
    def here(self) -> dict[str, bytes]:
        found = [*self.paths.results.glob("*"), *self.paths.logs.glob("*.out")]
        return {path.name: path.read_bytes() for path in found if not path.name.startswith(".")}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _longer(path: Path) -> None:
    os.truncate(path, 1 << 33)


def _shorter(path: Path) -> None:
    os.truncate(path, 100)


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a device": (_device, "it is not a regular file"),
    "a pipe": (_pipe, "it is not a regular file"),
    "a directory": (_directory, "directory"),
    "longer": (_longer, "more than the 6000 bytes came"),
    "shorter": (_shorter, "100 bytes of 6000 came"),
    "gone": (lambda path: path.unlink(), "No such file"),
}


@pytest.mark.parametrize(("lie", "said"), LIES.values(), ids=LIES)
def test_a_result_that_is_not_what_was_told(
    kept: Kept, lie: Callable[[Path], None], said: str
) -> None:
    lie(kept.attempt / "r0.result")
    fetch = kept.bring()
    assert said in fetch.problem
    assert "a1.r0.result" not in kept.here
    # What is right again is brought whole: nothing of the lie is a part of it.
    path = kept.attempt / "r0.result"
    (path.rmdir if path.is_dir() else lambda: path.unlink(missing_ok=True))()
    path.write_bytes(WROTE["r0.result"])
    assert kept.bring().is_here
    assert kept.here["a1.r0.result"] == WROTE["r0.result"]


def test_a_log_that_is_longer_is_cut_and_one_that_is_shorter_stays_there(kept: Kept) -> None:
    os.truncate(kept.attempt / "r0.err", 0)
    _longer(kept.attempt / "r0.out")
    fetch = kept.bring()
    assert "0 bytes of 4 came" in fetch.problem
    assert kept.here["a1.n0.r0.out"] == WROTE["r0.out"]


class Endless(LocalConnection):
    """Answers every question with zeros."""

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        while True:
            yield bytes(1 << 16)


def test_answers_without_end(kept: Kept) -> None:
    kept.connection = Endless()
    assert "more than the 6000 bytes came" in kept.bring().problem
    assert kept.here == {"a1.n0.r0.out": bytes(4000)}
    assert sum(path.stat().st_size for path in kept.paths.directory.rglob("*")) < 1 << 20


@pytest.mark.parametrize("who", ["others", "another user"])
@pytest.mark.parametrize("place", ["", "a1"])
def test_a_directory_that_somebody_else_could_have_made(kept: Kept, who: str, place: str) -> None:
    """The host has lost it since, say by a reboot, and another user has left results of his own there."""
    if who == "others":
        (kept.home / place).chmod(0o777)
    else:
        need("root")
        os.chown(kept.home / place, USER_ID, USER_ID)
    fetch = kept.bring()
    assert "others could change what runs as you there" in fetch.problem
    assert str(kept.home / place) in fetch.problem
    assert kept.here == {}
