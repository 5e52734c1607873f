"""Finding, naming and ending processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.node.system import processes
from tests.helpers import eventually

ROOT = Path(__file__).parents[2]
MARK = {"FLOW_TASK_ID": f"t-processes-{os.getpid()}"}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    processes.kill_all(lambda: processes.marked(MARK))
    for each in made:
        each.kill()
        each.wait()


def sh(script: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["sh", "-c", script],
        env={**os.environ, **MARK, **environment},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )


def test_a_process_is_named_by_pid_and_start(started: list[subprocess.Popen[bytes]]) -> None:
    child = sh("exec sleep 60")
    started.append(child)
    identity = processes.identity(child.pid)
    assert processes.is_alive(child.pid)
    assert processes.is_alive(identity["pid"], identity["start"])
    assert not processes.is_alive(child.pid, "another start")
    child.kill()
    eventually(lambda: not processes.is_alive(child.pid), what="a zombie counts as dead")
    child.wait()
    assert processes.start_of(child.pid) is None


def test_a_marker_need_not_be_utf8() -> None:
    """The path of FLOW_HOME is one."""
    marks = {**MARK, "FLOW_HOME": os.fsdecode(b"/caf\xe9")}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **marks}) as one:
        try:
            eventually(lambda: processes.marked(marks) == {one.pid})
        finally:
            one.kill()


def test_marked_finds_those_with_all_markers(started: list[subprocess.Popen[bytes]]) -> None:
    one = sh("exec sleep 60", FLOW_NODE_RANK="0")
    two = sh("exec sleep 60", FLOW_NODE_RANK="1")
    started.extend([one, two])
    eventually(lambda: processes.marked(MARK) >= {one.pid, two.pid})
    assert processes.marked({**MARK, "FLOW_NODE_RANK": "1"}) == {two.pid}
    assert processes.environment_of(two.pid)["FLOW_NODE_RANK"] == "1"
    # A value that only begins alike is another one.
    assert not processes.marked({"FLOW_TASK_ID": MARK["FLOW_TASK_ID"][:-1]})


def test_descendants_are_found_to_the_last(started: list[subprocess.Popen[bytes]]) -> None:
    child = sh("sh -c 'sleep 61 & setsid sleep 62 & wait' & wait")
    started.append(child)
    eventually(lambda: len(processes.descendants([child.pid])) == 3, what="sh and two sleeps")
    assert child.pid not in processes.descendants([child.pid])


def test_kill_all_ends_those_that_ignore_sigterm_and_those_that_leave_their_group(
    started: list[subprocess.Popen[bytes]],
) -> None:
    child = sh("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 63 & echo up; wait' & sleep 64")
    started.append(child)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    left = processes.kill_all(
        lambda: processes.marked(MARK) - {child.pid} or processes.marked(MARK)
    )
    assert not left
    assert not processes.marked(MARK)


@pytest.mark.skipif(not processes.LINUX, reason="told by /proc")
def test_a_process_whose_main_thread_has_ended_lives(
    started: list[subprocess.Popen[bytes]],
) -> None:
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    started.append(child)

    def main_thread_has_ended() -> bool:
        found = processes.row(child.pid)
        return found is not None and found.state == "Z"

    eventually(main_thread_has_ended)
    assert processes.is_alive(child.pid)
    assert child.pid in processes.descendants([os.getpid()])
    assert not processes.kill_all(lambda: {child.pid} & processes.descendants([os.getpid()]))
    assert child.wait() == -signal.SIGKILL


@pytest.mark.skipif(not processes.LINUX, reason="told by /proc")
def test_writers_are_told_from_readers(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    path = tmp_path / "r0.out"
    writer = sh(f"exec sleep 60 >> {path}")
    started.append(writer)
    eventually(path.exists)
    reader = sh(f"exec sleep 60 < {path}")
    started.append(reader)
    eventually(lambda: os.path.realpath(f"/proc/{reader.pid}/fd/0") == str(path))
    assert processes.writers([str(path)]) == {writer.pid}


def test_ps_lines_are_read_as_macos_writes_them() -> None:
    rows = processes.parse_ps(
        [
            "    1     0     1 Ss   Mon Nov  3 09:12:44 2025    ",
            "  517   501   517 Z+   Sat Nov 22 10:00:01 2025",
            "garbage",
        ]
    )
    assert rows[1].start == "Mon Nov 3 09:12:44 2025"
    assert (rows[517].parent, rows[517].group, rows[517].dead) == (501, 517, True)
    assert set(rows) == {1, 517}


@pytest.mark.needs("ps")
def test_without_proc_ps_tells_the_same(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    child = sh("sh -c 'sleep 61 & wait' & wait")
    started.append(child)
    eventually(lambda: len(processes.descendants([child.pid])) == 2)
    expected = processes.descendants([child.pid])
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(processes, "LINUX", False)
        assert processes.descendants([child.pid]) == expected
        identity = processes.identity(child.pid)
        assert processes.is_alive(identity["pid"], identity["start"])
        assert not processes.adopt_orphans()


def test_all_descriptors_but_these_are_closed() -> None:
    child = (
        "import os; from flowlite.node.system import processes\n"
        "others = [each for _ in range(20) for each in os.pipe()]; kept = others.pop(7)\n"
        "processes.close_others(kept); os.fstat(kept); os.write(1, b'kept ')\n"
        "for each in others:\n"
        "    try: os.fstat(each); os.write(1, b'open ')\n"
        "    except OSError: os.write(1, b'closed ')"
    )
    shown = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.split() == ["kept", *["closed"] * 39]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_a_standard_stream_that_was_closed_is_redirected(closed: str) -> None:
    """Also for the programs that the process starts."""
    script = (
        "import os, sys; from flowlite.node.system import processes as p; "
        "p.redirect(os.devnull, 0); p.redirect(os.devnull, 1, 2); "
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    )
    tell = (
        "import os; os.write(9, b' '.join(os.readlink(f'/dev/fd/{n}').encode() for n in (0, 1, 2)))"
    )
    command = shlex.join([sys.executable, "-c", script, tell])
    shown = subprocess.run(
        ["sh", "-c", f"exec 9>&1; exec {command} {closed}"], stdout=subprocess.PIPE, check=True
    )
    assert shown.stdout == b"/dev/null /dev/null /dev/null"


def test_own_command_runs_this_package(tmp_path: Path) -> None:
    command = processes.own_command(sys.executable, "look", str(tmp_path), flags=("-I", "-S"))
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout)["workers"] == []


def test_where_the_kernel_does_not_a_thread_follows_the_parent(
    started: list[subprocess.Popen[bytes]],
) -> None:
    child = (
        "import os, sys, time; from flowlite.node.system import processes; os.setsid()\n"
        "processes.watch_parent(os.getppid(), 0.05); print('up', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])",
        ],
        env={**os.environ, **MARK},
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    started.append(parent)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    parent.kill()
    parent.wait()
    eventually(lambda: not processes.marked(MARK), what="the child follows its parent")
