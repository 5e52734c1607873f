"""Where a worker stands, asked from outside: by its own signal, and by py-spy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.node.system import stack_dump
from tests.helpers import eventually

ROOT = Path(__file__).parent.parent.parent
WORKER = """
import json, sys, threading, time
sys.path.insert(0, {root!r})
from flowlite.node.system import stack_dump as stacks
order = {{"rank": 3, "failure": {attempt!r} + "/r3.failure"}}
stacks.note_worker(order)
if {answers!r}:
    stacks.answer_for_stacks(order)

def waits_here():
    time.sleep(600)

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("up", flush=True)
waits_here()
"""


def start(attempt: Path, *, answers: bool) -> subprocess.Popen[bytes]:
    code = WORKER.format(root=str(ROOT), attempt=str(attempt), answers=answers)
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"up\n"
    return worker


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = start(tmp_path, answers=True)
    yield process
    process.kill()
    process.communicate()


def test_a_function_worker_writes_its_stack_when_asked(
    worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (note,) = stack_dump.living_workers(str(tmp_path))
    assert (note["rank"], note["pid"]) == (3, worker.pid)

    eventually(lambda: len(stack_dump.with_signal(note)) == 2)
    for _ in range(3):
        frames = stack_dump.with_signal(note)
        assert [frame["function"] for frame in frames] == ["waits_here", "<module>"]

    assert worker.poll() is None


def test_py_spy_sees_the_main_thread(worker: subprocess.Popen[bytes]) -> None:
    tool = stack_dump.find_py_spy(sys.executable)
    if tool is None:
        pytest.skip("py-spy is not installed")

    def seen() -> bool:
        frames, _ = stack_dump.with_py_spy(tool, worker.pid)
        return [frame["function"] for frame in frames] == ["waits_here", "<module>"]

    # It says that it is up just before it waits there.
    eventually(seen)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_a_process_that_is_no_python_is_named() -> None:
    program = subprocess.Popen(["sleep", "60"])
    try:
        found = stack_dump.stack_of({"pid": program.pid}, sys.executable)
    finally:
        program.kill()
        program.wait()
    name = os.path.basename(os.path.realpath(shutil.which("sleep") or "sleep"))
    assert found["frames"] == []
    assert found["why"] == f"the rank's process is {name}, which is no Python"


def test_without_py_spy_a_process_that_does_not_answer_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(tmp_path, answers=False)
    try:
        (note,) = stack_dump.living_workers(str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        found = stack_dump.stack_of(note, "/nowhere/python")

        assert found["frames"] == []
        assert "pip install py-spy" in found["why"]
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_is_gone_is_not_listed(
    worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    worker.kill()
    worker.wait()

    assert stack_dump.living_workers(str(tmp_path)) == []


def test_another_process_with_the_same_pid_is_not_listed(tmp_path: Path) -> None:
    note = {"rank": 0, "pid": os.getpid(), "start": "1", "signal": 39}
    (tmp_path / "r0.pid").write_text(json.dumps(note))
    (tmp_path / "r1.pid").write_text("not JSON")

    assert stack_dump.living_workers(str(tmp_path)) == []


def test_the_oldest_thread_is_the_main_thread() -> None:
    text = (
        "Thread 0x00007f (most recent call first):\n"
        '  File "/a/b.py", line 3 in other\n'
        "\n"
        "Current thread 0x00007e (most recent call first):\n"
        '  File "/a/with in it.py", line ??? in inner\n'
        '  File "/a/c.py", line 7 in <module>\n'
    )

    assert stack_dump.main_thread(text) == [
        {"file": "/a/with in it.py", "line": 0, "function": "inner"},
        {"file": "/a/c.py", "line": 7, "function": "<module>"},
    ]


def test_the_signal_is_none_that_schedulers_use() -> None:
    assert stack_dump.dump_signal() not in {None, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM}


def test_py_spy_is_looked_for_beside_the_tasks_python(tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\n")
    assert stack_dump.find_py_spy(str(tmp_path / "python")) == shutil.which("py-spy")
    tool.chmod(0o755)
    assert stack_dump.find_py_spy(str(tmp_path / "python")) == str(tool)
