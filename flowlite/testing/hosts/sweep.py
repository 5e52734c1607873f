"""Removes what is left of clusters whose room was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowlite.testing.hosts import cgroups

PREFIX = "flowlite-hosts-"


def parent() -> Path:
    """The directory that holds the clusters' directories."""
    return Path(tempfile.gettempdir())


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A lock held while a directory is made or removed, so that a new one is not taken for an abandoned one."""
    with open(parent() / "flowlite-hosts.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_directory() -> tuple[Path, int]:
    """A new cluster's directory, and the descriptor of the lock that marks it as in use, which goes to the room."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent()))
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return directory, lock


def sweep() -> list[Path]:
    """Removes all clusters whose room is gone, and returns their directories. Call it under `one_at_a_time`."""
    swept = []
    for directory in parent().glob(f"{PREFIX}*"):
        # Another user may make a directory with such a name, and must not have us remove things through it.
        if not directory.is_dir() or not ours(directory) or _in_use(directory):
            continue
        _end_laptop_of(directory.name)
        below = cgroups.base()
        if below is not None:
            cgroups.remove(below / directory.name)
        shutil.rmtree(directory, ignore_errors=True)
        swept.append(directory)
    return swept


def ours(path: Path) -> bool:
    """Whether the path belongs to us."""
    return path.lstat().st_uid == os.geteuid()


def _in_use(directory: Path) -> bool:
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def end_all_in_network(network: int | str, spare: int = 0) -> None:
    """Kills every process but `spare` in a network namespace, given as a descriptor or a path."""
    wanted = os.fstat(network) if isinstance(network, int) else os.stat(network)
    deadline = time.monotonic() + 10
    while pids := [p for p in _processes_in(wanted.st_ino) if p not in (spare, os.getpid())]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {pids} do not end")
        time.sleep(0.005)


def _processes_in(inode: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}/ns/net").st_ino == inode:
                found.append(int(name))
    return found


def _end_laptop_of(tag: str) -> None:
    """Ends the processes on a dead cluster's laptop, found by the cluster's tag on the loopback interface."""
    seen: set[int] = {os.stat("/proc/self/ns/net").st_ino}
    for name in filter(str.isdigit, os.listdir("/proc")):
        network = f"/proc/{name}/ns/net"
        with contextlib.suppress(OSError):
            inode = os.stat(network).st_ino
            if inode not in seen:
                seen.add(inode)
                if tag in _interfaces(network):
                    end_all_in_network(network)


def _interfaces(network: str) -> str:
    done = subprocess.run(
        ["nsenter", f"--net={network}", "ip", "link", "show", "lo"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout
