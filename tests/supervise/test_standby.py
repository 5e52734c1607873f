"""A supervisor that waits for the next task: taken where it is as good as a new one, and no loss where it is not."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.api.task import Task
from flowlite.node.forkserver import registry
from flowlite.node.system import processes, runtime_dir
from flowlite.supervise.process import standby
from flowlite.supervise.record import process_identity
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="nothing is kept elsewhere")


@pytest.fixture(autouse=True)
def home(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (flow_home / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(flow_home / "tmp"))
    # A spare that a busy machine keeps from answering would be taken for none.
    monkeypatch.setattr(standby, "_ANSWER_SECONDS", 60.0)
    yield flow_home
    registry.end(registry.all_of(runtime_dir.find()))


@pytest.fixture
def job() -> Any:
    return FlowApp(keep_warm="1m").function(lambda: 1)


def supervisor_of(task: Task[Any]) -> process_identity.Process:
    import json

    noted = json.loads(task._session.paths(task.id).supervisor.read_bytes())
    return process_identity.Process(int(noted["pid"]), str(noted["start"]))


def waits() -> bool:
    """Whether a spare accepts connections; the name of its socket is there a moment before."""
    accepting = f"{1 << 16:08X}"
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        rows = [line.split(maxsplit=7) for line in table]
    prefix = os.path.join(runtime_dir.find(), "spare-")
    return any(len(row) == 8 and row[3] == accepting and row[7].startswith(prefix) for row in rows)


def run(job: Any) -> process_identity.Process:
    """Runs a task to its end; gives its supervisor, which by then waits if it is to."""
    task = job.spawn()
    assert task.result() == 1
    found = supervisor_of(task)
    if job.build_task_config().keep_warm:
        eventually(lambda: waits() or not found.alive)
    return found


def test_it_leads_the_next_task_and_says_what_it_has_to_say_in_that_ones_log(
    job: Any, home: Path
) -> None:
    first = run(job)
    task = job.spawn()
    assert supervisor_of(task) == first
    log = task._session.paths(task.id).supervisor_log
    assert os.readlink(f"/proc/{first.pid}/fd/2") in (str(log), os.devnull)
    assert task.result() == 1
    assert next(event.text for event in task.events()).startswith("asking for 1 node")
    eventually(waits)
    assert run(job) == first


def test_workers_get_the_environment_of_who_submits(monkeypatch: pytest.MonkeyPatch) -> None:
    @FlowApp(keep_warm="1m").function
    def seen() -> str | None:
        import os

        return os.environ.get("COLOUR")

    assert seen.remote() is None
    eventually(waits)
    monkeypatch.setenv("COLOUR", "green")
    assert seen.remote() == "green"
    eventually(waits)
    monkeypatch.delenv("COLOUR")
    assert seen.remote() is None


def test_a_task_without_the_wish_gets_a_supervisor_of_its_own(job: Any) -> None:
    first = run(job)
    other = FlowApp().function(lambda: 1)
    second = run(other)
    assert second != first
    eventually(lambda: not second.alive)
    assert first.alive


def test_with_other_limits_another_one_is_started(job: Any) -> None:
    first = run(job)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        assert run(job) != first
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_goes_after_its_time(home: Path) -> None:
    brief = FlowApp(keep_warm=0.2).function(lambda: 1)
    first = run(brief)
    eventually(lambda: not first.alive)
    assert not waits()


def test_killed_while_it_waits_it_is_no_loss(job: Any) -> None:
    first = run(job)
    os.kill(first.pid, signal.SIGKILL)
    assert run(job) != first


def test_killed_while_it_leads_its_task_is_taken_up_by_another(tmp_path: Path, job: Any) -> None:
    first = run(job)
    flag = str(tmp_path / "go")

    @FlowApp(keep_warm="1m").function
    def wait(flag: str) -> int:
        import os
        import time

        while not os.path.exists(flag):
            time.sleep(0.01)
        return 7

    task = wait.spawn(flag)
    assert supervisor_of(task) == first
    eventually(lambda: task.status == "running")
    os.kill(first.pid, signal.SIGKILL)
    Path(flag).touch()
    assert task.result() == 7
    assert supervisor_of(task) != first


def test_one_that_does_not_answer_is_left_alone(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(job)
    os.kill(first.pid, signal.SIGSTOP)
    monkeypatch.setattr(standby, "_ANSWER_SECONDS", 0.2)
    try:
        assert run(job) != first
    finally:
        os.kill(first.pid, signal.SIGKILL)


class TestASpareOfThisProcess:
    """Without a task, in a thread."""

    @pytest.fixture
    def found(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        # The outputs of the tests are needed.
        monkeypatch.setattr(processes, "redirect", lambda *_: None)
        found: list[Any] = []
        self.thread = threading.Thread(target=lambda: found.append(self.one.wait(home, 30.0)))
        self.one = standby.Standby(time.time())
        self.thread.start()
        eventually(waits)
        yield found
        standby.dismiss(home)
        self.thread.join(90)

    def test_only_one_waits_for_each_home(self, found: list[Any], home: Path) -> None:
        assert standby.Standby(time.time()).wait(home, 30.0) is None

    @pytest.mark.parametrize("length", [1, 500_000])
    def test_it_is_told_task_and_environment(
        self, found: list[Any], home: Path, length: int
    ) -> None:
        environment = {"A": "ü" * length}
        process = standby.hand_over(home, "t1", environment)
        assert process == process_identity.of_process(os.getpid())
        self.thread.join(90)
        assert found == [standby.HandedTask("t1", environment)]
        assert not waits()

    def test_nonsense_does_no_harm(self, found: list[Any], home: Path) -> None:
        for nonsense in (b"", b"\n", b"{}\n", b"x" * 100_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(standby._path(home))
                connection.sendall(nonsense)
        assert standby.hand_over(home, "t1", {}) is not None

    def test_after_an_upgrade_it_goes(
        self, found: list[Any], home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self.one._watched, "changed", lambda: sys.executable)
        assert standby.hand_over(home, "t1", {}) is None
        self.thread.join(90)
        assert found == [None]

    def test_one_that_began_before_what_it_has_imported_was_changed_goes(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "redirect", lambda *_: None)
        changed = home / "flowlite_test_upgraded.py"
        changed.write_text("VALUE = 1")
        # As an installer does.
        os.utime(changed, (1e9, 1e9))
        module = types.ModuleType("flowlite_test_upgraded")
        module.__file__ = str(changed)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        found: list[Any] = []
        for began, fit in ((time.time() - 60, False), (time.time() + 60, True)):
            one = standby.Standby(began)
            thread = threading.Thread(target=lambda one=one: found.append(one.wait(home, 30.0)))
            thread.start()
            eventually(waits)
            assert (standby.hand_over(home, "t1", {}) is not None) == fit
            thread.join(90)

    def test_it_goes_when_it_is_sent_away(self, found: list[Any], home: Path) -> None:
        standby.dismiss(home)
        self.thread.join(90)
        assert found == [None]
