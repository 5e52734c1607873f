"""What a look at a node proves, with commands that really run, or are broken off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.connect.base import Connection
from flowlite.connect.values import Completed
from flowlite.node.system import processes
from flowlite.provider import Instance, NodeSettings
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer


class Here:
    """A connection to this machine, as far as probes need one. `spoil` changes how a command comes out."""

    def __init__(self, spoil: Callable[[Completed], Completed], shell: str = "sh") -> None:
        self._spoil = spoil
        self._shell = shell

    def run(self, argv: Sequence[str], *, timeout: float, **_: Any) -> Completed:
        argv = [self._shell, *argv[1:]] if argv[0] == "sh" else argv
        done = subprocess.run(argv, capture_output=True, timeout=timeout, check=False)
        return self._spoil(Completed(done.returncode, done.stdout, done.stderr))

    def read(self, path: str, offset: int = 0) -> list[bytes]:
        return [Path(path).read_bytes()[offset:]]


class Listed:
    """A provider that lists the node."""

    def list_instances(self, task_id: str) -> list[Instance]:
        return [INSTANCE]


INSTANCE = Instance("i-0", "t1", "running", "127.0.0.1", {})


def looked_at(
    home: Path, noted: Mapping[str, Any], spoil: Callable[[Completed], Completed] = lambda it: it
) -> ProbeAnswer:
    (home / "a1").mkdir()
    (home / "a1" / "agent.pid").write_text(json.dumps(noted))
    node = Node(Listed(), INSTANCE, NodeSettings(str(home), sys.executable), 0, 1)  # type: ignore[arg-type]
    node._connection = Here(spoil)  # type: ignore[assignment]
    return node.probe().life


def test_a_process_is_there_or_gone(tmp_path: Path) -> None:
    assert looked_at(tmp_path, processes.identity(os.getpid())) is ProbeAnswer.ALIVE
    gone = subprocess.Popen(["true"])
    noted = processes.identity(gone.pid)
    gone.wait()
    (tmp_path / "second").mkdir()
    assert looked_at(tmp_path / "second", noted) is ProbeAnswer.DEAD


def test_another_process_of_that_number_is_not_it(tmp_path: Path) -> None:
    assert looked_at(tmp_path, {"pid": os.getpid(), "start": "1"}) is ProbeAnswer.DEAD


@pytest.mark.parametrize("code", [-15, -9, 1, 127, 255])
def test_a_look_that_was_broken_off_proves_nothing(tmp_path: Path, code: int) -> None:
    def broken(looked: Completed) -> Completed:
        # All but the last line, which tells.
        return Completed(code, b"\n".join(looked.stdout.split(b"\n")[:2]) + b"\n", b"")

    noted = processes.identity(os.getpid())
    assert looked_at(tmp_path, noted, broken) is ProbeAnswer.UNREACHABLE


def test_a_note_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    assert looked_at(tmp_path, {"start": "1"}) is ProbeAnswer.UNREACHABLE


ME = processes.identity(os.getpid())
WRITTEN = {
    "as an agent writes it": (json.dumps(ME).encode(), ProbeAnswer.ALIVE),
    "in another order": (json.dumps(dict(reversed(ME.items()))).encode(), ProbeAnswer.ALIVE),
    "with more space": (json.dumps(ME, separators=(",", ":   ")).encode(), ProbeAnswer.ALIVE),
    "with zeros and empty lines": (b"\0\0" + json.dumps(ME).encode() + b"\n\n", ProbeAnswer.ALIVE),
    "nothing": (b"", ProbeAnswer.UNREACHABLE),
    "no number": (b'{"pid": "a", "start": "1"}', ProbeAnswer.UNREACHABLE),
    "less than nothing": (b'{"pid": -1, "start": "1"}', ProbeAnswer.UNREACHABLE),
    "a number alone": (b"%d" % os.getpid(), ProbeAnswer.UNREACHABLE),
    "many digits": (b"9" * 100_000, ProbeAnswer.UNREACHABLE),
    "many lines": (b"x\n" * 50_000, ProbeAnswer.UNREACHABLE),
    "what printf would expand": (rb'\n%s{"pid": 1', ProbeAnswer.UNREACHABLE),
    "what a shell would run": (
        b'{"pid": $(touch ran)`touch ran`; touch ran',
        ProbeAnswer.UNREACHABLE,
    ),
    "no process": (b'{"pid": 99999999999999999999, "start": "1"}', ProbeAnswer.DEAD),
}


@pytest.mark.parametrize("shell", [shell for shell in ("dash", "bash") if shutil.which(shell)])
@pytest.mark.parametrize("written", WRITTEN)
def test_whatever_is_written_there_a_look_ends_and_runs_nothing(
    tmp_path: Path, shell: str, written: str
) -> None:
    (tmp_path / "a1").mkdir()
    content, expected = WRITTEN[written]
    (tmp_path / "a1" / "agent.pid").write_bytes(content)
    node = Node(Listed(), INSTANCE, NodeSettings(str(tmp_path), sys.executable), 0, 1)  # type: ignore[arg-type]
    node._connection = Here(lambda it: it, shell)  # type: ignore[assignment]
    assert node.probe().life is expected
    assert [each.name for each in tmp_path.rglob("*")] == ["a1", "agent.pid"]


def test_only_a_node_where_an_agent_has_run_is_asked_for_its_report(tmp_path: Path) -> None:
    asked: list[str] = []

    class Asked(Connection):
        def read_all(self, path: str, most: int = 0) -> bytes:
            asked.append(Path(path).name)
            return Path(path).read_bytes()

    node = Node(Listed(), INSTANCE, NodeSettings(str(tmp_path), sys.executable), 0, 1)  # type: ignore[arg-type]
    Asked.__abstractmethods__ = frozenset()
    node._connection = Asked()  # type: ignore[abstract]
    node.look_for_agent()
    assert (node.has_run, node.report_seen, asked) == (False, None, ["agent.pid"])

    directory = tmp_path / "a1"
    directory.mkdir()
    (directory / "agent.pid").write_text(json.dumps(processes.identity(os.getpid())))
    node.look_for_agent()
    assert (node.has_run, node.report_seen) == (True, None)
    assert "report.json" in asked

    # What an agent never writes proves nothing, but a report beside it is still found.
    (directory / "agent.pid").write_text("nonsense")
    node.look_for_agent()
    assert (node.has_run, node.report_seen) == (False, None)


class Direct(Here):
    """A connection to this machine that reads small files at once, and notes the commands that are run."""

    def __init__(self) -> None:
        super().__init__(lambda it: it)
        self.commands: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], *, timeout: float, **more: Any) -> Completed:
        self.commands.append(argv)
        return super().run(argv, timeout=timeout, **more)

    def read_at_once(self, path: str) -> bytes | None:
        return Path(path).read_bytes()

    def read_all(self, path: str, most: int) -> bytes:
        return Path(path).read_bytes()


def one_that_has_ended() -> dict[str, Any]:
    gone = subprocess.Popen(["true"])
    noted = processes.identity(gone.pid)
    gone.wait()
    return noted


def directly(home: Path, agent: Any, environment: Any) -> tuple[Node, Direct]:
    """A node whose agent noted these processes; `None` stands for a file that is not there."""
    (home / "a1").mkdir()
    for name, noted in (("agent.pid", agent), ("env.json", environment)):
        if noted is not None:
            (home / "a1" / name).write_text(json.dumps(noted))
    node = Node(Listed(), INSTANCE, NodeSettings(str(home), sys.executable), 0, 1)  # type: ignore[arg-type]
    connection = Direct()
    node._connection = connection  # type: ignore[assignment]
    return node, connection


@pytest.mark.parametrize("reaper", [True, False], ids=["workers", "no workers"])
def test_a_gang_that_has_left_is_found_gone_without_a_command(tmp_path: Path, reaper: bool) -> None:
    environment = {"reaper": one_that_has_ended()} if reaper else {}
    node, connection = directly(tmp_path, one_that_has_ended(), environment)
    assert node.stop(1.0)
    assert connection.commands == []


@pytest.mark.parametrize("what", ["agent", "reaper"])
def test_what_still_runs_is_not_found_gone(tmp_path: Path, what: str) -> None:
    gone = one_that_has_ended()
    with subprocess.Popen(["sleep", "600"]) as running:
        living = processes.identity(running.pid)
        agent, reaper = (living, gone) if what == "agent" else (gone, living)
        node, _ = directly(tmp_path, agent, {"reaper": reaper})
        assert not node._leaves_soon()
        running.kill()
    assert node._leaves_soon()


@pytest.mark.parametrize(
    ("agent", "environment"),
    [
        (None, {}),
        ({"pid": -1}, {}),
        ({"pid": "../self"}, {}),
        ("nonsense", {}),
        (one_that_has_ended(), None),
        (one_that_has_ended(), {"reaper": {"pid": "x"}}),
        (one_that_has_ended(), {"reaper": 7}),
    ],
)
def test_what_an_agent_never_writes_is_left_to_the_ordinary_way(
    tmp_path: Path, agent: Any, environment: Any
) -> None:
    node, _ = directly(tmp_path, agent, environment)
    assert not node._leaves_soon()


def test_a_connection_that_reads_nothing_at_once_uses_commands(tmp_path: Path) -> None:
    node, connection = directly(tmp_path, one_that_has_ended(), {})
    connection.read_at_once = lambda path: None  # type: ignore[method-assign]
    assert node.stop(1.0)
    assert connection.commands != []
