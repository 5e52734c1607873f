"""Profilers, coverage and debuggers on ranks that are forked, beside ranks that are Pythons of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from flowlite.node.system import processes
from tests.forked_scripts.both_ways import Server
from tests.helpers import eventually, kill_processes_of

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="processes are not forked elsewhere")

TASK = f"t-tools-{os.getpid()}"
SECONDS = 90.0
_AHEAD: dict[str, Any] = {"imports": ["json", "decimal"], "late": [], "writes": []}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "beside.py").write_text("def half(x):\n    return x / 2\n")
    (directory / "train.py").write_text("import decimal\nimport beside\nprint(beside.half(4))\n")
    monkeypatch.chdir(directory)
    yield directory
    kill_processes_of(TASK)


def _measured(files: list[Path]) -> dict[str, list[int]]:
    """The lines of each file that ran, as coverage has recorded them."""
    import coverage

    found: dict[str, list[int]] = {}
    for file in files:
        data = coverage.CoverageData(str(file))
        data.read()
        for each in data.measured_files():
            found[os.path.basename(each)] = sorted(data.lines(each) or [])
    return found


@pytest.mark.parametrize(
    "argv",
    [
        ["coverage", "run", "--parallel-mode", "train.py"],
        ["python", "-m", "coverage", "run", "--parallel-mode", "train.py"],
    ],
    ids=" ".join,
)
def test_coverage_measures_the_script(project: Path, argv: list[str]) -> None:
    with Server(project, argv, TASK, {"COVERAGE_FILE": str(project / "data")}) as server:
        assert "coverage" in server.call["why"]
        here = server.run(forked=True)
    assert here.told == ("2.0\n", "", 0, None)
    assert _measured(list(project.glob("data.*"))) == {"train.py": [1, 2, 3], "beside.py": [1, 2]}


@pytest.mark.parametrize("by", ["its own .pth file", "sitecustomize"])
def test_coverage_that_measures_every_python_measures_the_script_only(
    project: Path, by: str
) -> None:
    rules = project / "rules"
    rules.write_text(f"[run]\nparallel = true\ndata_file = {project}/data\n")
    environment = {"COVERAGE_PROCESS_START": str(rules)}
    if by == "sitecustomize":
        environment = {"PYTHONPATH": str(project.parent / "modules"), "OWN_RULES": str(rules)}
        (project.parent / "modules").mkdir()
        (project.parent / "modules" / "sitecustomize.py").write_text(
            "import os, coverage\nos.environ['COVERAGE_PROCESS_START'] = os.environ['OWN_RULES']\n"
            "coverage.process_startup()\n"
        )
    argv = ["python", "train.py", by]
    with Server(project, argv, TASK, environment, _AHEAD) as server:
        here = server.run(forked=True)
    assert "coverage" in here.why
    assert here.told == ("2.0\n", "", 0, None)
    found = _measured(list(project.glob("data.*")))
    found.pop("sitecustomize.py", None)
    assert found == {"train.py": [1, 2, 3], "beside.py": [1, 2]}


def test_py_spy_reads_the_stack_of_a_forked_rank(project: Path) -> None:
    (project / "train.py").write_text(
        "import os, time\ndef waits():\n    open('up', 'w').close()\n    time.sleep(300)\nwaits()\n"
    )
    program = Path(sys.executable).with_name("py-spy")
    seen = []
    with Server(project, ["python", "train.py"], TASK, None, _AHEAD) as server:
        for forked in (False, True):
            (project / "up").unlink(missing_ok=True)
            pid = server.start(forked=forked)
            eventually((project / "up").exists)
            told = subprocess.run(
                [program, "dump", "--json", "--pid", str(pid)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=True,
            )
            os.kill(pid, 9)
            server.end()
            (thread,) = json.loads(told.stdout)
            seen.append(
                [
                    (each["name"], os.path.basename(each["filename"]), each["line"])
                    for each in thread["frames"]
                ]
            )
    assert seen[0] == seen[1] == [("waits", "train.py", 4), ("<module>", "train.py", 5)]


class Debugger:
    """Speaks the Debug Adapter Protocol with debugpy."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._stream: BinaryIO = self._socket.makefile("rb")
        self._events: list[dict[str, Any]] = []
        self._count = 0

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> int:
        self._count += 1
        request = {"seq": self._count, "type": "request", "command": command}
        body = json.dumps({**request, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._count

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.send(command, **arguments))

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            heard = self._read()
            if heard["type"] == "response" and heard["request_seq"] == number:
                assert heard["success"], heard
                body: dict[str, Any] = heard.get("body") or {}
                return body
            self._events.append(heard)

    def event(self, name: str) -> dict[str, Any]:
        while not (found := [each for each in self._events if each.get("event") == name]):
            self._events.append(self._read())
        self._events.remove(found[0])
        body: dict[str, Any] = found[0].get("body") or {}
        return body

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._stream.readline().strip():
            length = int(line.split(b":")[1])
        assert length, "debugpy hung up"
        heard: dict[str, Any] = json.loads(self._stream.read(length))
        return heard


_DEBUGGED = """
import debugpy, json

def work(x):
    secret = x * 2
    return secret

_, port = debugpy.listen(("127.0.0.1", 0))
with open("port.part", "w") as file:
    file.write(str(port))
import os
os.rename("port.part", "port")
debugpy.wait_for_client()
print(work(21))
"""


def test_a_debugger_attaches_to_a_forked_rank(project: Path) -> None:
    (project / "train.py").write_text(_DEBUGGED)
    # The adapter is a process of its own, which a busy machine starts late.
    patience = {"DEBUGPY_PROCESS_SPAWN_TIMEOUT": str(SECONDS)}
    call = {"imports": ["json", "debugpy", "os"], "late": [], "writes": []}
    seen = []
    with Server(project, ["python", "train.py"], TASK, patience, call) as server:
        for forked in (False, True):
            (project / "port").unlink(missing_ok=True)
            server.start(forked=forked)
            eventually((project / "port").exists)
            seen.append(_debug(int((project / "port").read_text()), project / "train.py"))
            ended = server.end()
            assert (ended["code"], ended["signal"]) == (0, None)
            assert (project.parent / "r0.out").read_text() == "42\n"
    assert seen[0] == seen[1] == (["work", "<module>"], "42", ["MainThread"])


def _debug(port: int, script: Path) -> tuple[list[str], str, list[str]]:
    """Attaches to a script that waits for a debugger, and stops it in `work`."""
    debugger = Debugger(port)
    try:
        debugger.ask("initialize", clientID="test", adapterID="python", pathFormat="path")
        attach = debugger.send("attach", justMyCode=True)
        debugger.event("initialized")
        debugger.ask("setBreakpoints", source={"path": str(script)}, breakpoints=[{"line": 6}])
        debugger.ask("configurationDone")
        debugger.answer(attach)
        thread = debugger.event("stopped")["threadId"]
        frames = debugger.ask("stackTrace", threadId=thread)["stackFrames"]
        value = debugger.ask("evaluate", expression="secret", frameId=frames[0]["id"])["result"]
        threads = [each["name"] for each in debugger.ask("threads")["threads"]]
        debugger.ask("continue", threadId=thread)
        return [each["name"] for each in frames], value, threads
    finally:
        debugger.close()
