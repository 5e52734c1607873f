"""What tests need beside Python: each component with how it is looked for and how it is installed.

A test states what it needs by one marker, a fixture by one call:

    @pytest.mark.needs("sshd", "fuse")
    need("sshd")

Where a component is missing, the test is skipped, and the end of the run sums up each component with the command that
installs it. `python3 -m tests.components` lists them; with `packages` it prints the packages of all of them, which
`.ci/run` installs. Imports only the standard library, since that is before there is an environment.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

AS_ROOT = "run the tests as root"


def _nothing_more() -> str:
    return ""


@dataclass(frozen=True)
class Component:
    """Something that a machine may lack.

    Attributes:
        what: What it is, in a few words.
        programs: Programs that must be found, in PATH or where administrators' programs are.
        packages: Debian's packages that bring them.
        root: Whether it takes root.
        check: Looks for what is no program; says what to do if it is missing, "" if not.
        optional: Tests that need it are left out where it is missing, also where everything is required.
    """

    what: str
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    root: bool = False
    check: Callable[[], str] = _nothing_more
    optional: bool = False

    def remedy(self) -> str:
        """What to do to have it here; "" where it is here."""
        todo = []
        if sys.platform != "linux":
            return "use a machine that runs Linux"
        search = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
        if any(shutil.which(program, path=search) is None for program in self.programs):
            todo.append(f"sudo apt install --no-install-recommends {' '.join(self.packages)}")
        if self.root and os.geteuid() != 0:
            todo.append(AS_ROOT)
        elif not todo and (more := self.check()):
            todo.append(more)
        return " and ".join(todo)


def _fuse_device() -> str:
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        return ""
    return "use a machine with FUSE (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"


def _mount_namespace() -> str:
    # In a process of its own, since this one must keep its mounts.
    asked = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return ""
    return (
        "use a machine where users may make namespaces (containers and hardened systems forbid it)"
    )


def _own_mounts() -> str:
    asked = ["unshare", "--mount", "true"]
    if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return ""
    return "use a machine where root may mount (in a container: --cap-add SYS_ADMIN)"


def _system_python() -> str:
    asked = ["/usr/bin/python3", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    with contextlib.suppress(OSError):
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return ""
    return "sudo apt install --no-install-recommends python3, on a system that has 3.11 or newer"


def _loop_device() -> str:
    done = subprocess.run(["losetup", "--find"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "use a machine with loop devices"


def _test_hosts() -> str:
    from flowlite.testing.hosts import why_not

    reason = why_not()
    return f"use a machine that allows it: {reason}" if reason else ""


_HOSTS = (
    "openssh-server",
    "openssh-client",
    "openssh-sftp-server",
    "iproute2",
    "nftables",
    "ethtool",
    "tini",
)
_HOST_PROGRAMS = ("sshd", "ssh-keygen", "ip", "nft", "ethtool", "tini", "nsenter")

COMPONENTS = {
    "root": Component("tests that become another user, or give files away", root=True),
    "namespaces": Component(
        "mount namespaces of an ordinary user", ("unshare",), ("util-linux",), check=_mount_namespace
    ),
    "own-mounts": Component(
        "mounts of a task's own, where a volume is at any path", ("unshare",), ("util-linux",),
        check=lambda: _own_mounts() if os.geteuid() == 0 else _mount_namespace(),
    ),
    "mounts": Component(
        "mounting", ("mount", "umount", "unshare"), ("mount", "util-linux"), root=True, check=_own_mounts
    ),
    "ssh": Component("OpenSSH's client", ("ssh", "ssh-keygen", "ssh-agent", "sftp"), ("openssh-client",)),
    "sshd": Component(
        "an sshd of our own",
        ("sshd", "ssh", "ssh-keygen"),
        ("openssh-server", "openssh-client", "openssh-sftp-server"),
    ),
    "sftp-server": Component(
        "OpenSSH's SFTP server", ("sftp",), ("openssh-client", "openssh-sftp-server"), check=lambda: _sftp()
    ),
    "ps": Component("ps", ("ps",), ("procps",)),
    "ss": Component("ss", ("ss",), ("iproute2",)),
    "hosts": Component(
        "test hosts", _HOST_PROGRAMS, (*_HOSTS, "util-linux", "procps"), root=True, check=_test_hosts
    ),
    "slurm": Component(
        "a Slurm on test hosts",
        (*_HOST_PROGRAMS, "slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "srun", "sacct"),
        (*_HOSTS, "slurm-wlm", "slurm-client", "slurmctld", "slurmd", "slurmdbd", "munge", "mariadb-server"),
        root=True,
        check=_test_hosts,
    ),
    "fuse": Component(
        "FUSE file systems", ("fusermount3",), ("fuse3", "mount"), check=_fuse_device
    ),
    "sshfs": Component(
        "sshfs", ("sshfs", "fusermount3"), ("sshfs", "fuse3", "openssh-sftp-server"), check=_fuse_device
    ),
    "rclone": Component("rclone", ("rclone",), ("rclone",)),
    "ceph": Component(
        "Ceph's S3 server",
        ("radosgw", "ceph-mon", "ceph-osd", "ceph"),
        ("radosgw", "ceph-mon", "ceph-osd"),
    ),
    "podman": Component(
        "containers", ("podman", "crun", "unshare"), ("podman", "crun", "uidmap"), root=True, check=_own_mounts
    ),
    "disks": Component(
        "disks to format", ("losetup", "mkfs.ext4"), ("e2fsprogs", "mount"), root=True, check=_loop_device
    ),
    "system-python": Component("a Python 3.11 of the system's own", check=_system_python),
    "python3.12": Component("a Python 3.12 beside this one", check=lambda: _other_python("3.12"), optional=True),
    "python3.13": Component("a Python 3.13 beside this one", check=lambda: _other_python("3.13"), optional=True),
    "syntax-3.12": Component(
        "Python 3.12 or later, here", check=lambda: "" if sys.version_info >= (3, 12) else "uv python install 3.12",
        optional=True,
    ),
    "pypy": Component("another Python", ("pypy3",), ("pypy3",)),
    "gcc": Component("a C compiler", ("gcc",), ("gcc", "libc6-dev")),
    "mpi": Component("Open MPI", ("mpirun", "orted"), ("openmpi-bin", "libopenmpi-dev")),
    "node": Component("Node.js, for pyright", ("node",), ("nodejs", "npm")),
    "cron": Component("timers of cron", ("crontab",), ("cron",)),
    "systemd-analyze": Component("systemd's check of timers", ("systemd-analyze",), ("systemd",)),
    "curl": Component("curl", ("curl",), ("curl",)),
    "sudo": Component("sudo", ("sudo",), ("sudo",)),
}  # fmt: skip


@functools.cache
def python_of(minor: str) -> tuple[str, str] | None:
    """A Python of that version on this machine, as (path, version); every one that is asked has to start.

    The first process of a run searches, and tells the others.
    """
    told = _told_to_all(f"python{minor}")
    if told is not None and told.exists():
        known = json.loads(told.read_text())
        return None if known is None else (known[0], known[1])
    from flowlite.node.python_env import interpreters

    found = interpreters.find(minor)
    if told is not None:
        told.write_text(json.dumps(found))
    return found


def _told_to_all(name: str) -> Path | None:
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        return None
    from tests.plugins import shared_files

    return shared_files.path_of(name)


def _other_python(minor: str) -> str:
    return f"uv python install {minor}" if python_of(minor) is None else ""


def _sftp() -> str:
    from flowlite.node.leader_volumes.confined_sftp import find_server

    try:
        find_server()
    except OSError:
        return "sudo apt install --no-install-recommends openssh-sftp-server"
    return ""


@functools.cache
def missing(name: str) -> str:
    """Why a test that needs this component is skipped; "" where it is here."""
    remedy = COMPONENTS[name].remedy()
    return f"needs {name}: {remedy}" if remedy else ""


def left_out(names: Iterable[str]) -> bool:
    """Whether a test that needs these components is not even skipped here: an optional one is missing."""
    return any(COMPONENTS[name].optional and missing(name) for name in names)


def need(*names: str) -> None:
    """Skips the test, or all tests of the fixture that asks, where one of these components is missing."""
    for name in names:
        if reason := missing(name):
            import pytest

            pytest.skip(reason)


def main(arguments: list[str]) -> None:
    """Prints the packages of all components, or each component with what to do for it here."""
    if arguments == ["packages"]:
        wanted = sorted({package for each in COMPONENTS.values() for package in each.packages})
        print("\n".join(wanted))
        return
    for name, each in COMPONENTS.items():
        print(f"{name:12} {each.what:45} {each.remedy() or 'here'}")


if __name__ == "__main__":
    main(sys.argv[1:])
