"""Commands of `flow` in forked processes, beside the same in interpreters of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.state.store import Store
from tests.flow_commands import run
from tests.flow_commands.run import flow
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only tests on Linux use it")
ROOT = Path(__file__).resolve().parents[2]


def started(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-m", "flowlite.cli", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        **options,
    )


@pytest.fixture
def environment(flow_home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--json"],
        ["config", "show", "--json"],
        ["run", "--dry-run", "--", "echo", "ä"],
        ["run", "--dry-run", "--provider", "ssh", "--", "true"],
        ["run", "--dry-run"],
        ["status", "nobody"],
        ["nothing"],
        ["run", "--help"],
    ],
    ids=" ".join,
)
def test_all_that_a_command_says_is_the_same(
    words: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    there = started(words, env=environment, cwd=tmp_path)
    for _ in range(2):
        here = flow(words, env=environment, cwd=tmp_path)
        assert (here.returncode, here.stdout, here.stderr) == (
            there.returncode,
            there.stdout,
            there.stderr,
        )


def test_the_next_command_finds_what_the_one_before_has_imported(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # Variables of the interpreter's start: no test before this one has had the same.
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    imported = [flow(["status"], env=environment, cwd=tmp_path).imported for _ in range(3)]
    assert imported[0] > 50
    assert imported[1:] == [0, 0]


def test_a_command_has_the_variables_and_the_directory_that_it_is_given(
    environment: dict[str, str], flow_home: Path, tmp_path: Path
) -> None:
    (flow_home / "mine").mkdir()
    environment["FLOW_HOME"] = str(flow_home / "mine")
    shell = ["sh", "-c", "echo $FLOW_PROJECT_TEST in $PWD"]
    words = ["run", "--provider", "local", "--env", f"FLOW_PROJECT_TEST={tmp_path.name}", "--"]
    done = flow([*words, *shell], env=environment, cwd=tmp_path)
    assert f"{tmp_path.name} in " in done.stdout, done.stderr
    (record,) = Store(flow_home / "mine" / "state.db").list_tasks()
    assert record.state == "completed"


def test_a_module_of_the_user_comes_from_the_directory_of_the_command(
    environment: dict[str, str], tmp_path: Path
) -> None:
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "job.py").write_text(
            "from flowlite import FlowApp\n"
            "app = FlowApp()\n"
            f"@app.function(provider='local')\ndef job():\n    return '{name} it is'\n"
        )
        said = flow(["run", "job.py::job"], env=environment, cwd=directory).stdout
        assert f"{name} it is" in said


def test_one_that_takes_too_long_is_killed(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired, match=r"flowlite\.cli.*timed out after 2 s"):
        flow(["run", "--", "sleep", "300"], env=environment, cwd=tmp_path, timeout=2)
    eventually(lambda: not commands())


def commands() -> list[int]:
    """The commands of this process's servers."""
    servers = {str(server.pid) for server, _ in run._servers.values()}
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if parent in servers:
                found.append(int(pid))
    return found


_SECOND_COMMAND = """
import gc, json, os, signal, socket
import server

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
fork, first = os.fork, []

def forked():
    if first:
        return 0  # This process goes on as the second command.
    first.append(fork())
    if first == [0]:
        signal.pause()
    return first[0]

os.fork = forked
request = {"words": [], "environment": dict(os.environ), "cwd": os.getcwd()}
replies = [socket.socketpair() for _ in range(2)]
for _, reply in replies:
    streams = [reply.fileno(), 0, 1, 2, os.open("/proc/self/ns/net", os.O_RDONLY)]
    socket.send_fds(ours, [json.dumps(request).encode()], streams)
for each in (ours, *replies[0], *replies[1]):
    each.detach()
try:
    server.serve(theirs)
finally:
    os.kill(first[0], signal.SIGKILL)
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
del theirs
gc.collect()
for each in opened:
    os.fstat(each)
print("all are open")
"""


def test_nothing_of_the_server_closes_what_a_command_has_opened() -> None:
    here = Path(run.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", _SECOND_COMMAND],
        env={**os.environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "all are open\n", done.stderr


@pytest.mark.needs("hosts")
def test_it_runs_in_the_network_of_its_thread(environment: dict[str, str], tmp_path: Path) -> None:
    def seen() -> str:
        words = ["run", "--", "readlink", "/proc/self/ns/net"]
        done = flow(words, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    from flowlite.testing.hosts import system

    first = seen()
    with system.inside_network(system.new_network()):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        here = os.readlink("/proc/thread-self/ns/net")
        assert seen() == here != first
    assert seen() == first
