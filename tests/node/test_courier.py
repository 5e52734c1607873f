"""The courier, spoken to as a client does: files, leases and agents through one process, and what it leaves undone."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.node.helper.courier import ROOM, Requests
from flowlite.node.host_lease import client
from flowlite.node.system import processes
from tests.helpers import eventually, put_agent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are leased on Linux")


class Courier:
    """One, with its channel."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), "courier", ROOM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def ask(self, do: str, content: bytes = b"", **request: Any) -> tuple[dict[str, Any], bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        head = {"do": do, "size": len(content), **request}
        self.process.stdin.write(json.dumps(head).encode() + b"\n" + content)
        answer = json.loads(self.process.stdout.readline())
        back = b""
        while len(back) < answer["size"]:
            back += self.process.stdout.read(answer["size"] - len(back))
        return answer, back

    def put(self, *files: dict[str, Any], content: bytes = b"") -> dict[str, Any]:
        usual = {"mode": 0o600, "size": None, "sha256": None, "cache": None}
        return self.ask("put", content, files=[{**usual, **each} for each in files])[0]

    def start(
        self, argv: Sequence[str], log: Path, environment: dict[str, str] | None = None
    ) -> dict[str, Any]:
        return self.ask("start", argv=argv, log=str(log), environment=environment or {})[0]

    def command(self, directory: Path) -> list[str]:
        """As a supervisor starts an agent."""
        return [sys.executable, "-I", "-S", str(self.program), "agent", str(directory)]

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(90)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it lies on a host: under its hash."""
    put_agent(home := tmp_path_factory.mktemp("home"))
    built = build_agent_zip(home)
    path = tmp_path_factory.mktemp("blobs") / built.sha256
    path.write_bytes(built.path.read_bytes())
    path.chmod(0o700)
    return path


@pytest.fixture
def courier(program: Path) -> Iterator[Courier]:
    made = Courier(program)
    yield made
    assert made.leave() == 0


@pytest.fixture
def agents() -> Iterator[Callable[[int], int]]:
    """Notes agents, to be ended after the test."""
    noted: list[int] = []

    def note(pid: int) -> int:
        noted.append(pid)
        return pid

    yield note
    for pid in noted:
        processes.send(pid, signal.SIGKILL)


class TestFiles:
    def test_files_are_put_in_their_order_with_their_modes(
        self, courier: Courier, tmp_path: Path
    ) -> None:
        first, second = tmp_path / "new" / "deep" / "first", tmp_path / "second"
        second.write_bytes(b"older and longer")
        answer = courier.put(
            {"target": str(first), "size": 5, "mode": 0o700},
            {"target": str(second), "size": 3},
            content=b"helloabc",
        )
        assert "errno" not in answer
        assert "unfit" not in answer
        assert (first.read_bytes(), second.read_bytes()) == (b"hello", b"abc")
        assert first.stat().st_mode & 0o777 == 0o700
        assert second.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        assert [each.name for each in first.parent.iterdir()] == ["first"]

    def test_what_lies_in_the_cache_is_shown_under_its_name(
        self, courier: Courier, tmp_path: Path
    ) -> None:
        data = b"x" * 5000
        sha256 = hashlib.sha256(data).hexdigest()
        cache = tmp_path / "blobs"
        cache.mkdir()
        (cache / sha256).write_bytes(data)
        (cache / sha256).chmod(0o600)
        target = tmp_path / "task" / "call.bin"
        cached = {"target": str(target), "sha256": sha256, "cache": str(cache)}
        assert "unfit" not in courier.put(cached)
        assert target.samefile(cache / sha256)
        assert "unfit" not in courier.put(cached)

        executable = {**cached, "target": str(tmp_path / "program"), "mode": 0o700}
        assert "unfit" not in courier.put(executable)
        assert (tmp_path / "program").read_bytes() == data
        assert os.access(tmp_path / "program", os.X_OK)
        assert not os.access(cache / sha256, os.X_OK)

    @pytest.mark.parametrize("there", [None, b"y" * 5000])
    def test_nothing_is_written_where_content_is_lacking(
        self, courier: Courier, tmp_path: Path, there: bytes | None
    ) -> None:
        sha256 = hashlib.sha256(b"x" * 5000).hexdigest()
        if there is not None:
            (tmp_path / sha256).write_bytes(there)
        answer = courier.put(
            {"target": str(tmp_path / "small"), "size": 1},
            {"target": str(tmp_path / "big"), "sha256": sha256, "cache": str(tmp_path)},
            content=b"s",
        )
        assert answer["unfit"]
        assert not (tmp_path / "small").exists()
        assert not (tmp_path / "big").exists()

    @pytest.mark.parametrize("arrived", [0, 40])
    def test_content_that_breaks_off_is_put_nowhere(
        self, program: Path, tmp_path: Path, arrived: int
    ) -> None:
        target = tmp_path / "target"
        target.write_bytes(b"the older content")
        courier = Courier(program)
        file = {"target": str(target), "mode": 0o600, "size": 100, "sha256": None, "cache": None}
        head = {"do": "put", "size": 100, "files": [file]}
        assert courier.process.stdin is not None
        courier.process.stdin.write(json.dumps(head).encode() + b"\n" + b"x" * arrived)
        assert courier.leave() == 0
        assert target.read_bytes() == b"the older content"

    def test_what_changes_is_hashed_again(self, courier: Courier, tmp_path: Path) -> None:
        sha256 = hashlib.sha256(b"good").hexdigest()
        target = tmp_path / "file"
        target.write_bytes(b"good")
        assert "unfit" not in courier.put({"target": str(target), "sha256": sha256})
        target.unlink()
        target.write_bytes(b"evil")
        assert courier.put({"target": str(target), "sha256": sha256})["unfit"]

    def test_what_cannot_be_written_says_why(self, courier: Courier, tmp_path: Path) -> None:
        directory = tmp_path / "directory"
        directory.mkdir()
        answer = courier.put({"target": str(directory), "size": 1}, content=b"x")
        assert answer["errno"] == errno.EISDIR
        below = courier.put({"target": f"{tmp_path}/file/below", "size": 1}, content=b"x")
        assert "errno" not in below
        answer = courier.put({"target": f"{tmp_path}/file/below/it", "size": 1}, content=b"x")
        assert answer["errno"] == errno.ENOTDIR
        assert [each.name for each in tmp_path.iterdir() if "part" in each.name] == []

    def test_files_are_read_from_an_offset(self, courier: Courier, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(range(256)))
        assert courier.ask("read", path=str(path), offset=0) == ({"size": 256}, path.read_bytes())
        assert courier.ask("read", path=str(path), offset=250)[1] == bytes(range(250, 256))
        assert courier.ask("read", path=str(path), offset=999)[1] == b""

    def test_what_is_no_small_file_is_left_to_others(
        self, courier: Courier, tmp_path: Path
    ) -> None:
        absent = courier.ask("read", path=str(tmp_path / "absent"), offset=0)[0]
        assert absent["errno"] == errno.ENOENT
        assert courier.ask("read", path=str(tmp_path), offset=0)[0]["errno"] == errno.EISDIR
        os.mkfifo(tmp_path / "pipe")
        assert (
            courier.ask("read", path=str(tmp_path / "pipe"), offset=0)[0]["errno"] == errno.EINVAL
        )
        with open(tmp_path / "big", "wb") as file:
            file.truncate(1 << 22)
        assert courier.ask("read", path=str(tmp_path / "big"), offset=0)[0]["unfit"]
        assert courier.ask("what is this")[0]["unfit"]


class TestAgents:
    def test_an_agent_looks_as_if_it_had_been_started(
        self, courier: Courier, tmp_path: Path, agents: Callable[[int], int]
    ) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        command = courier.command(directory)
        marks = {"FLOW_TASK_ID": "tcourier", "FLOW_LEASE": "name/1"}
        # It has no orders, so it says what it lacks, and ends.
        pid = agents(courier.start(command, directory / "agent.log", marks)["pid"])
        report = eventually(lambda: _json(directory / "report.json"), what="its report")
        assert report["outcome"] == "error"
        assert _json(directory / "agent.pid")["pid"] == pid
        assert "agent.json" in (directory / "agent.log").read_text()
        # Collected, so that nobody takes it for alive.
        eventually(lambda: processes.row(pid) is None, what="the agent to be collected")

    def test_an_agent_that_ends_is_collected_whatever_the_courier_does(
        self, courier: Courier, tmp_path: Path, agents: Callable[[int], int]
    ) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        os.mkfifo(directory / "agent.json")
        command, log = courier.command(directory), directory / "agent.log"
        pid = agents(courier.start(command, log)["pid"])
        eventually(lambda: (directory / "agent.pid").exists(), what="the agent to begin")
        courier.process.send_signal(signal.SIGSTOP)
        try:
            processes.send(pid, signal.SIGKILL)
            eventually(lambda: processes.row(pid) is None, what="no zombie to be left")
        finally:
            courier.process.send_signal(signal.SIGCONT)

    def test_others_see_whose_it_is(
        self, courier: Courier, tmp_path: Path, agents: Callable[[int], int]
    ) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        # Reading its orders blocks until somebody writes them.
        os.mkfifo(directory / "agent.json")
        marks = {"FLOW_TASK_ID": "tcourier", "FLOW_LEASE": "name/1"}
        command = courier.command(directory)
        pid = agents(courier.start(command, directory / "agent.log", marks)["pid"])
        eventually(lambda: (directory / "agent.pid").exists(), what="the agent to begin")
        assert processes.environment_of(pid) == marks
        line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert line == [os.fsencode(word) for word in command]
        assert os.getsid(pid) == pid
        assert {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()} == {
            "/dev/null",
            str(directory / "agent.log"),
            str(directory / "agent.lock"),
        }
        assert processes.environment_of(courier.process.pid).get("FLOW_LEASE") is None

    def test_an_agent_outlives_its_courier(
        self, program: Path, tmp_path: Path, agents: Callable[[int], int]
    ) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        os.mkfifo(directory / "agent.json")
        courier = Courier(program)
        log = directory / "agent.log"
        pid = agents(courier.start(courier.command(directory), log)["pid"])
        eventually(lambda: (directory / "agent.pid").exists(), what="the agent to begin")
        assert courier.leave() == 0
        assert processes.is_alive(pid)

    def test_the_second_agent_of_a_directory_leaves(
        self, courier: Courier, tmp_path: Path, agents: Callable[[int], int]
    ) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        os.mkfifo(directory / "agent.json")
        command, log = courier.command(directory), directory / "agent.log"
        first = agents(courier.start(command, log)["pid"])
        eventually(lambda: (directory / "agent.pid").exists(), what="the agent to begin")
        second = agents(courier.start(command, log)["pid"])
        eventually(lambda: processes.row(second) is None, what="the second to leave")
        assert processes.is_alive(first)

    def test_only_our_own_program_is_forked(self, courier: Courier, tmp_path: Path) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        command, log = courier.command(directory), directory / "agent.log"
        other = tmp_path / "other.pyz"
        other.write_bytes(courier.program.read_bytes() + b"!")
        assert courier.start([*command[:3], str(other), *command[4:]], log)["unfit"]
        assert courier.start(["/usr/bin/python3", *command[1:]], log)["unfit"]
        assert courier.start([*command[:4], "look", str(directory)], log)["unfit"]
        assert courier.start(["sleep", "1"], log)["unfit"]
        absent = courier.start(command, tmp_path / "absent" / "agent.log")
        assert absent["errno"] == errno.ENOENT
        assert not (directory / "agent.pid").exists()

    def test_a_copy_of_our_program_is_our_program(
        self, courier: Courier, tmp_path: Path, agents: Callable[[int], int]
    ) -> None:
        directory = tmp_path / "a1"
        directory.mkdir()
        copy = tmp_path / "agent.pyz"
        copy.write_bytes(courier.program.read_bytes())
        command = courier.command(directory)
        command[3] = str(copy)
        agents(courier.start(command, directory / "agent.log")["pid"])
        eventually(lambda: _json(directory / "report.json"), what="its report")


def test_a_lease_outlives_the_courier_that_took_it(program: Path, tmp_path: Path) -> None:
    name = f"flowlite-test-{os.getpid()}-{os.urandom(4).hex()}"
    root = str(tmp_path / "root")
    request = {
        "token": "t1-launch-1",
        "task": "t1",
        "client": "here",
        "label": "laptop",
        "instance": "t1-000-here",
        "root": root,
        "home": f"{root}/tasks/t1-000-here",
        "ttl": 60.0,
        "data": {},
    }
    courier = Courier(program)
    taken = courier.ask("lease", what="take", request=request, name=name)[0]["lease"]
    try:
        assert taken["ok"]
        again = courier.ask("lease", what="take", request=request, name=name)[0]["lease"]
        assert again["lease"]["lease"] == taken["lease"]["lease"]
        assert courier.leave() == 0
        held = client.show(name)["held"]
        assert held["task"] == "t1"
        other = Courier(program)
        refused = {**request, "task": "t2", "token": "t2-launch-1"}
        assert not other.ask("lease", what="take", request=refused, name=name)[0]["lease"]["ok"]
        assert other.ask("lease", what="release", request=request, name=name)[0]["lease"]["ok"]
        shown = other.ask("lease", what="show", request={}, name=name)[0]["lease"]
        assert shown["held"] is None
        assert other.leave() == 0
    finally:
        client.release(request, name)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def test_one_whose_client_falls_silent_ends(program: Path) -> None:
    """No end of file comes when the network is gone."""
    courier = Courier(program)
    assert courier.process.stdin is not None
    courier.process.stdin.write(b'{"do": "beat", "within": 30.0}\n')
    assert courier.ask("hello") == ({"size": 0}, b"")
    courier.process.stdin.write(b'{"do": "beat", "within": 0.2}\n')
    assert courier.process.wait(90) == 0


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_requests_are_read_as_they_were_sent(size: int) -> None:
    reading, writing = os.pipe()
    sent = os.urandom(size)
    process = os.fork()
    if process == 0:
        with open(writing, "wb") as pipe:
            pipe.write(b"first\n" + sent + b"second\n")
        os._exit(0)
    os.close(writing)
    requests = Requests(reading)
    requests.expect(30.0)
    assert requests.line() == b"first\n"
    assert requests.exactly(size) == sent
    assert requests.line() == b"second\n"
    assert requests.line() == b""
    assert not requests.silent
    os.waitpid(process, 0)
    os.close(reading)


class TestSubcommands:
    """What reads a question and prints an answer runs in a forked process, without a Python of its own."""

    def ask(self, courier: Courier, *argv: str, question: Any) -> tuple[dict[str, Any], bytes]:
        command = [sys.executable, "-I", "-S", str(courier.program), *argv]
        return courier.ask("run", json.dumps(question).encode(), argv=command)

    def project(self, home: Path) -> dict[str, Any]:
        """A project with one file and its content; returns the question."""
        content = b"print('hello')\n"
        sha256, blobs = hashlib.sha256(content).hexdigest(), home / "blobs"
        blobs.mkdir(parents=True)
        (blobs / sha256).write_bytes(content)
        manifest = {
            "files": [["train.py", sha256, len(content), False]],
            "links": {},
            "directories": [],
        }
        (home / "project.json").write_text(json.dumps(manifest))
        return {"home": str(home), "blobs": str(blobs), "packs": []}

    def test_a_project_is_made(self, courier: Courier, tmp_path: Path) -> None:
        question = self.project(tmp_path / "home")
        answer, output = self.ask(courier, "project", question=question)
        assert (answer, json.loads(output)) == ({"size": len(output)}, {"made": True})
        assert (tmp_path / "home" / "project" / "train.py").read_text() == "print('hello')\n"

    def test_no_descriptor_and_no_process_is_left(self, courier: Courier, tmp_path: Path) -> None:
        assert courier.ask("hello") == ({"size": 0}, b"")
        # It still imports after it has said hello, but does nothing after other answers.
        self.ask(courier, "project", question=self.project(tmp_path / "first"))
        before = set(os.listdir(f"/proc/{courier.process.pid}/fd"))
        for number in range(3):
            self.ask(courier, "project", question=self.project(tmp_path / str(number)))
        assert set(os.listdir(f"/proc/{courier.process.pid}/fd")) == before
        eventually(lambda: processes.descendants({courier.process.pid}) <= {courier.process.pid})

    def test_a_list_of_20000_lacking_files_is_brought(
        self, courier: Courier, tmp_path: Path
    ) -> None:
        names = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(20_000)]
        manifest = {
            "files": [[f"f{number}", name, 4096, False] for number, name in enumerate(names)],
            "links": {},
            "directories": [],
        }
        (tmp_path / "project.json").write_text(json.dumps(manifest))
        question = {"home": str(tmp_path), "blobs": str(tmp_path / "blobs"), "packs": []}
        _, output = self.ask(courier, "project", question=question)
        assert [name for name, _ in json.loads(output)["lacking"]] == names

    def test_one_that_fails_is_left_to_the_client(self, courier: Courier, tmp_path: Path) -> None:
        answer, output = self.ask(courier, "project", question={"home": str(tmp_path)})
        assert (answer, output) == ({"unfit": True, "size": 0}, b"")
        assert courier.ask("hello") == ({"size": 0}, b"")

    @pytest.mark.parametrize("argv", [("project", "more"), ("exec",), ("courier",), ()])
    def test_nothing_else_is_run(self, courier: Courier, argv: tuple[str, ...]) -> None:
        assert self.ask(courier, *argv, question={})[0]["unfit"]

    def test_nor_another_program(self, courier: Courier, tmp_path: Path) -> None:
        command = [sys.executable, "-I", "-S", str(tmp_path / "other.pyz"), "project"]
        assert courier.ask("run", b"{}", argv=command)[0]["unfit"]
