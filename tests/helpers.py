"""What tests of every room share: waiting without sleeping blindly, and finding the processes of a task."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from flowlite.testing.polling import pause_after

Value = TypeVar("Value")
SUPERVISOR = "flowlite.supervise.process.main"


KILLED = (
    r"killed by SIGKILL \((not by the kernel for lack of memory|out of memory\?"
    r"( the kernel has ended a process of this machine for it meanwhile)?)\)"
)
"""How the end of a process that a test has killed is told: where there are counters, it was not the kernel."""


def eventually(
    probe: Callable[[], Value], *, timeout: float = 90.0, every: float = 0.01, what: str = ""
) -> Value:
    """Calls `probe` until it gives something true, and returns that.

    Raises:
        AssertionError: It gave nothing true in time; the message holds its last value.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        value = probe()
        if value:
            return value
        ended = time.monotonic()
        if ended > deadline:
            raise AssertionError(f"not within {timeout} s: {what or probe}; last value: {value!r}")
        time.sleep(pause_after(ended - began, every))


def put_agent(home: Path) -> None:
    """Gives a new FLOW_HOME the agent, as if a task had been submitted from there before."""
    shutil.copytree(_home_with_agent(), home, dirs_exist_ok=True)


@functools.cache
def _home_with_agent() -> str:
    """A directory with the agent. To build it takes a second, so that the first process of a run does it for all."""
    from flowlite.testing.base import home_with_agent

    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        return home_with_agent().name
    from tests.plugins import shared_files

    made, lock = map(shared_files.path_of, ("agent", "agent-lock"))
    assert made is not None
    assert lock is not None
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not made.exists():
            shutil.copytree(home_with_agent().name, part := f"{made}-part")
            os.rename(part, made)
    return str(made)


def processes_of(task_id: str) -> list[int]:
    """Ids of all living processes that belong to a task: agents, fork servers, workers, strays, supervisors."""
    marker = f"FLOW_TASK_ID={task_id}"
    return [
        pid
        for pid in _others()
        if (_has_entry(pid, marker) or _supervises(pid, task_id)) and _state(pid) != "Z"
    ]


def describe(pids: list[int]) -> list[str]:
    """Command lines, for the message of a failed assertion."""
    return [f"{pid}: {_command_line(pid)}" for pid in pids]


def assert_no_process_left(task_id: str, *, timeout: float = 60.0) -> None:
    """Waits until no process of the task lives."""
    deadline = time.monotonic() + timeout
    while left := processes_of(task_id):
        if time.monotonic() > deadline:
            raise AssertionError(f"left over from {task_id}: {describe(left)}")
        time.sleep(0.02)


def kill_processes_of(task_id: str) -> None:
    """Cleans up after a failed test: SIGKILL to every process of the task, the supervisor first."""
    _kill(lambda: processes_of(task_id))


def kill_processes_of_home(home: Path) -> None:
    """Cleans up after a test: SIGKILL to every process that was started for a FLOW_HOME, supervisors first."""
    marker = f"FLOW_HOME={home}"
    _kill(lambda: [pid for pid in _others() if _has_entry(pid, marker) and _state(pid) != "Z"])


def _kill(find: Callable[[], list[int]]) -> None:
    for _ in range(5):
        pids = find()
        # A supervisor that lives would start again what is killed under it.
        for pid in sorted(pids, key=lambda pid: SUPERVISOR not in _command_line(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.02)


@contextlib.contextmanager
def taken_port(port: int) -> Iterator[None]:
    """Somebody listens on a port of this machine meanwhile: this test, as soon as nobody else does any more.

    A gang of another test may have the port as its master port. It has the UDP port of that number then, also while its
    rank 0 does not listen yet.
    """

    def take() -> socket.socket | None:
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as namesake:
            try:
                namesake.bind(("127.0.0.1", port))
                found.bind(("127.0.0.1", port))
                found.listen()
            except OSError:
                found.close()
                return None
        return found

    with eventually(take, what=f"port {port} to be free"):
        yield


def process_alive(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped.

    Of one that was killed, the main thread may have ended before the others have.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) != "Z" or _threads(pid) > 1


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def running(words: str) -> bool:
    """Whether a living process has these words in its command line."""
    return any(words in _command_line(pid) for pid in _others() if _state(pid) != "Z")


def _others() -> list[int]:
    """All processes but this one. Whether one lives is asked last, since few of them are wanted."""
    if Path("/proc/self/environ").exists():
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    else:
        listed = subprocess.run(["ps", "-axo", "pid="], capture_output=True, text=True, check=True)
        pids = [int(pid) for pid in listed.stdout.split()]
    return [pid for pid in pids if pid != os.getpid()]


def _supervises(pid: int, task_id: str) -> bool:
    command = _command_line(pid)
    return SUPERVISOR in command and task_id in command.split()


def _has_entry(pid: int, entry: str) -> bool:
    """Whether the process began with this variable. After every test, all processes of the machine are asked."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as environ:
            raw = environ.read()
        return entry.encode() in raw and entry.encode() in raw.split(b"\0")
    except OSError:
        if sys.platform == "linux":
            return False
    shown = subprocess.run(
        ["ps", "-wwE", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return entry in shown.stdout.split()


def _command_line(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        return raw.replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        if sys.platform == "linux":
            return ""
    shown = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0]
    except OSError:
        if sys.platform == "linux":
            return "Z"
    shown = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()[:1] or "Z"


def whole_lines(file: Path) -> list[str]:
    """The lines of a file that somebody still writes, without the one that is not whole yet."""
    return file.read_text().rpartition("\n")[0].splitlines()


def deep_tree(directory: Path, levels: int = 3000) -> None:
    """Makes directories inside one another, deeper than recursion goes, and with paths that are too long."""
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(levels):
            os.mkdir("a", dir_fd=here)
            below = os.open("a", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    finally:
        os.close(here)


def clean_by_age(directory: Path) -> None:
    """Removes what is below a directory, as systemd-tmpfiles does with what is old: except below a lock."""
    for name in directory.iterdir():
        _clean(name)


def _clean(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        clean_by_age(path)
        with contextlib.suppress(OSError):
            path.rmdir()
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
