"""The courier of this machine, as a real process that forks real agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect import local_courier
from flowlite.connect.local import LocalConnection
from flowlite.node.system import processes
from tests.helpers import eventually


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent_zip(tmp_path_factory.mktemp("home")).path


@pytest.fixture
def task() -> str:
    """A task of its own: agents of another test may be ending still, and tests run beside one another."""
    return f"t-courier-{uuid.uuid4().hex}"


@pytest.fixture
def begin(program: Path) -> Iterator[Callable[[], int]]:
    """Starts the courier of this process and returns its process id. pytest changes the environment after fixtures."""
    assert local_courier._present is None

    def start_courier() -> int:
        local_courier.start_ahead(program)
        assert local_courier._present is not None
        return local_courier._present._child.pid

    yield start_courier
    if local_courier._present is not None:
        local_courier._present.end()
        local_courier._present = None


@pytest.fixture
def start(program: Path, tmp_path: Path, task: str) -> Callable[..., int | None]:
    """Has the courier start the agents of these directories, which have no configuration and therefore end at once."""

    def ask(*names: str, program: Path = program) -> int | None:
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
        argv = [sys.executable, "-I", "-S", str(program), "agent", "--detach"]
        argv += [str(tmp_path / name) for name in names]
        return local_courier.start_agent(argv, str(tmp_path / "log"), {"FLOW_TASK_ID": task})

    return ask


def start_by_connection(program: Path, tmp_path: Path) -> None:
    """Starts an agent as a supervisor does, and waits until it has run."""
    directory = tmp_path / "first"
    directory.mkdir()
    argv = [sys.executable, "-I", "-S", str(program), "agent", str(directory)]
    assert LocalConnection().start(argv, log=str(tmp_path / "log"), environment={}) > 0
    eventually(lambda: (directory / "report.json").exists(), timeout=30, what="a report")


def ended(pid: int) -> bool:
    row = processes.row(pid)
    return row is None or row.dead


def test_it_forks_an_agent_for_each_directory(
    begin: Callable[[], int], start: Callable[..., int | None], tmp_path: Path
) -> None:
    begin()
    pid = start("first", "second")
    assert pid is not None
    for name in ("first", "second"):
        eventually(
            lambda name=name: (tmp_path / name / "report.json").exists(),
            timeout=30,
            what="a report",
        )
        assert "agent.json" in (tmp_path / name / "report.json").read_text()


def test_an_agent_looks_as_one_that_was_started_for_its_task(
    begin: Callable[[], int],
    start: Callable[..., int | None],
    program: Path,
    task: str,
    tmp_path: Path,
) -> None:
    """The processes of a task are found by their environment, and people look for them with `ps`."""
    courier = begin()
    directory = tmp_path / "held"
    directory.mkdir()
    # The agent waits here for its configuration.
    os.mkfifo(directory / "agent.json")
    pid = start("held")
    assert pid is not None
    try:

        def agents() -> set[int]:
            # While it detaches, there are two.
            found = processes.marked({"FLOW_TASK_ID": task})
            return found if len(found) == 1 else set()

        found = eventually(agents, timeout=30, what="the agent in /proc")
        (agent,) = found
        command = Path(f"/proc/{agent}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert command[3:] == [
            os.fsencode(each) for each in (program, "agent", "--detach", directory)
        ]
        assert courier not in found
    finally:
        for each in processes.marked({"FLOW_TASK_ID": task}):
            processes.send(each, signal.SIGKILL)


def test_another_program_is_not_its_business(
    begin: Callable[[], int], start: Callable[..., int | None], tmp_path: Path
) -> None:
    begin()
    other = tmp_path / "other.pyz"
    other.write_bytes(b"#")
    assert start("first", program=other) is None
    assert start("first") is not None


def test_a_command_that_does_not_fit_into_its_pipe_is_not_its_business(
    begin: Callable[[], int], start: Callable[..., int | None], tmp_path: Path
) -> None:
    begin()
    argv = [sys.executable, "-I", "-S", "agent.pyz", "agent", "x" * (1 << 20)]
    assert local_courier.start_agent(argv, str(tmp_path / "log"), {}) is None
    assert start("first") is not None


def test_the_same_program_at_another_path_is_its_business(
    begin: Callable[[], int], start: Callable[..., int | None], program: Path, tmp_path: Path
) -> None:
    """As the copy in a node's directory is."""
    begin()
    (tmp_path / "agent.pyz").write_bytes(program.read_bytes())
    assert start("first", program=tmp_path / "agent.pyz") is not None


def test_it_is_not_used_with_another_environment(
    begin: Callable[[], int], start: Callable[..., int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that takes over another task gets the environment of its submitter."""
    courier = begin()
    monkeypatch.setenv("FLOW_OF_ANOTHER", "1")
    assert start("first") is None
    eventually(lambda: ended(courier), timeout=10, what="its end")


def test_without_an_answer_it_is_ended_and_agents_are_started_by_themselves(
    begin: Callable[[], int], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = begin()
    monkeypatch.setattr(local_courier, "_ANSWER_SECONDS", 0.2)
    os.kill(courier, signal.SIGSTOP)
    start_by_connection(program, tmp_path)
    assert ended(courier)


def test_a_courier_that_was_killed_is_no_hindrance(
    begin: Callable[[], int], program: Path, tmp_path: Path
) -> None:
    courier = begin()
    os.kill(courier, signal.SIGKILL)
    start_by_connection(program, tmp_path)


def test_it_ends_when_nobody_has_asked_it_for_a_while(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_courier, "_UNUSED_SECONDS", 0.2)
    local_courier.start_ahead(program)
    present, local_courier._present = local_courier._present, None
    assert present is not None
    # Nothing of it remains, not even a zombie.
    eventually(lambda: processes.row(present._child.pid) is None, timeout=30, what="its end")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_started_it(program: Path, how: signal.Signals) -> None:
    text = (
        "import sys, time; from pathlib import Path; from flowlite.connect import local_courier as courier;"
        "courier.start_ahead(Path(sys.argv[1])); print(courier._present._child.pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", text, str(program)], stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        courier = int(starter.stdout.readline())
        assert not ended(courier)
        starter.send_signal(how)
    eventually(lambda: ended(courier), timeout=10, what="its end")


def test_a_program_that_cannot_be_started_is_no_hindrance(tmp_path: Path) -> None:
    local_courier.start_ahead(tmp_path / "missing.pyz")
    argv = [sys.executable, "-I", "-S", str(tmp_path / "missing.pyz"), "agent", str(tmp_path)]
    assert local_courier.start_agent(argv, str(tmp_path / "log"), {}) is None
    assert local_courier._present is None
