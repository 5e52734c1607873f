"""Checks from outside: which hosts can be reached, and what is left of a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from pathlib import Path

from flowlite.testing.hosts import Cluster, Host, cgroups

_INODE = re.compile(r"(?:net|pid|mnt|uts|ipc|cgroup):\[(\d+)\]")


def ssh(
    hosts: Cluster, host: Host, command: str, *, user: str = "root", timeout: float = 30
) -> subprocess.CompletedProcess[str]:
    """Runs a command on a host with the system's `ssh`, from the laptop."""
    argv = ["ssh", "-F", str(hosts.ssh_config), "-l", user, host.name, command]
    return hosts.laptop.exec(argv, timeout=timeout)


def connect(hosts: Cluster, host: Host, timeout: float = 10.0) -> float:
    """Seconds that a TCP connection from the laptop to a host's sshd takes, without its banner."""
    with hosts.enter_laptop():
        begun = time.monotonic()
        socket.create_connection((host.address, 22), timeout).close()
        return time.monotonic() - begun


def reachable(hosts: Cluster, host: Host) -> bool:
    """Whether the host accepts a connection from the laptop within 10 s."""
    return _connects(hosts, host, 10.0)


def cut_off(hosts: Cluster, host: Host) -> bool:
    """Whether the host accepts no connection from the laptop within 0.5 s."""
    return not _connects(hosts, host, 0.5)


def reachable_from(source: Host, host: Host) -> bool:
    """Like `reachable`, from another host."""
    return _connects_from(source, host, 10.0)


def cut_off_from(source: Host, host: Host) -> bool:
    """Like `cut_off`, from another host."""
    return not _connects_from(source, host, 0.5)


def _connects(hosts: Cluster, host: Host, timeout: float) -> bool:
    try:
        connect(hosts, host, timeout)
    except OSError:
        return False
    return True


def _connects_from(source: Host, host: Host, timeout: float) -> bool:
    code = f"import socket; socket.create_connection(({host.address!r}, 22), {timeout})"
    return source.exec(["python3", "-S", "-c", code]).returncode == 0


def disks_of(directory: Path) -> list[str]:
    """The block devices of this machine that are backed by a cluster's files."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if file.read_text().startswith(f"{directory}/"):
                found.append(file.parts[3])
    return found


class Traces:
    """The kernel objects of a running cluster, to check afterwards that none is left.

    It holds the cluster's namespaces open, so that their numbers are not reused. `close` releases them.
    """

    def __init__(self, hosts: Cluster) -> None:
        facts = hosts.ask("facts")
        below = cgroups.base()
        assert below is not None
        self.directory = hosts.directory
        self.room: int = facts["room"]
        self.pids = [self.room, *(pid for host in hosts if host.alive for pid in host.pids())]
        self._group = below / self.directory.name
        self._witnesses: dict[int, int] = {}
        self._hold(hosts)

    def _hold(self, hosts: Cluster) -> None:
        own = set(_namespaces(os.getpid()).values())
        for pid in self.pids:
            for link, inode in _namespaces(pid).items():
                if inode not in own and inode not in self._witnesses:
                    with contextlib.suppress(OSError):
                        self._witnesses[inode] = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        assert len(self._witnesses) >= len(hosts)

    def close(self) -> None:
        """Releases the namespaces."""
        for fd in self._witnesses.values():
            os.close(fd)
        self._witnesses.clear()

    def left(self) -> list[str]:
        """Describes everything that is left."""
        found = [f"process {pid}" for pid in self.pids if _lives(pid)]
        found += [f"directory {path}" for path in (self.directory, self._group) if path.exists()]
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if pid == os.getpid():
                continue
            for inode in set(_namespaces(pid).values()) & set(self._witnesses):
                found.append(f"namespace {inode}, held by process {pid}")
            with contextlib.suppress(OSError):
                if self.directory.name in Path(f"/proc/{pid}/mountinfo").read_text():
                    found.append(f"a mount, seen by process {pid}")
        return found


def interfaces() -> set[str]:
    """The network interfaces of this machine."""
    return set(os.listdir("/sys/class/net"))


def _namespaces(pid: int) -> dict[str, int]:
    """The namespaces that a process is in or has open, as a path to open each, and its number."""
    found = {}
    for directory in (f"/proc/{pid}/ns", f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                link = f"{directory}/{name}"
                with contextlib.suppress(OSError):
                    if match := _INODE.fullmatch(os.readlink(link)):
                        found[link] = int(match[1])
    return found


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
