"""The root file system of a host: the machine's own through an overlay, plus what is unique to the host.

A host's writes go to its own disk (a tmpfs), which survives a power cut. `upper` and `work` belong to the overlay;
`home`, `root`, `tmp` and `vartmp` are mounted at their places.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

from flowlite.testing.hosts import cards, system

USER, USER_ID = "flow", 1234
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "net/tun")
# Kernel files that could stop or harm the real machine. On a host, writes to them have no effect.
KNOBS = (
    "proc/sysrq-trigger",
    "proc/sys/kernel/sysrq",
    "proc/sys/kernel/core_pattern",
    "sys/power/state",
)
# Programs of systemd, which does not run on a host. Without it they do nothing or, worse, act on the real machine.
_SYSTEMD = (
    "systemctl",
    "systemd-run",
    "loginctl",
    "journalctl",
    "reboot",
    "halt",
    "telinit",
    "runlevel",
    "init",
)
_POWER_OFF = ("poweroff", "shutdown")
# Process 1 forwards the signal to its child, and the host ends with process 1.
_POWER_OFF_SCRIPT = "#!/bin/sh\nexec kill -s TERM 1\n"
# Directories on the disk, their mount points, and their modes. Root's directory can be traversed, since other users may
# need the interpreter below it.
PLACES = (
    ("home", "home", 0o755),
    ("root", "root", 0o711),
    ("tmp", "tmp", 0o1777),
    ("vartmp", "var/tmp", 0o1777),
)
# File systems of these kinds, mounted below the machine's root, are visible on the host, read-only.
_DISKS = ("ext4", "ext3", "xfs", "btrfs", "overlay", "zfs", "f2fs", "virtiofs", "9p")
_OWN = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/home", "/root", "/mnt", "/etc")


@dataclass(frozen=True)
class Identity:
    """A host's names, directories and programs.

    Attributes:
        name: The host name.
        directory: The machine's directory for its keys and logs.
        disk: The mount point of its disk.
        shared: The directory that all hosts see at /mnt/shared.
        keep: Directories of the machine to show read-only, even below the host's own mounts.
        python: The interpreter that is `python3`; "" for the machine's own.
        path: Directories that come first in PATH.
        tags: The cluster's tag, for what survives a crash.
    """

    name: str
    directory: Path
    disk: Path
    shared: Path
    keep: tuple[str, ...] = ()
    python: str = ""
    path: tuple[str, ...] = ()
    sshd: dict[str, str] = field(default_factory=dict)

    @property
    def search_path(self) -> str:
        """The value of PATH on the host."""
        return ":".join((*self.path, PATH))


def write_disk(host: Identity, authorized_key: str) -> None:
    """Writes the initial files to an empty disk."""
    etc = host.disk / "upper" / "etc"
    etc.mkdir(parents=True)
    (host.disk / "work").mkdir()
    for place, _, mode in PLACES:
        (host.disk / place).mkdir()
        (host.disk / place).chmod(mode)
    (etc / "hostname").write_text(f"{host.name}\n")
    # As on Debian and Ubuntu: the own name maps to a loopback address, and no other host has a name.
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n")
    # Nothing listens at this address, so every query is refused at once.
    (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (etc / "machine-id").write_text(f"{os.urandom(16).hex()}\n")
    (etc / "subuid").write_text(f"{USER}:100000:65536\n")
    (etc / "subgid").write_text(f"{USER}:100000:65536\n")
    _write_accounts(etc)
    authorize(host.disk / "root", authorized_key, 0)
    authorize(host.disk / "home" / USER, authorized_key, USER_ID)
    _write_power_tools(host.disk / "upper" / "usr")
    if host.python:
        _write_python(host.disk / "upper" / "usr" / "local" / "bin", host.python)


def authorize(home: Path, authorized_keys: str, owner: int) -> None:
    """Allows the holders of keys to log in as the owner of a home directory."""
    ssh = home / ".ssh"
    ssh.mkdir(parents=True, exist_ok=True)
    (ssh / "authorized_keys").write_text(authorized_keys)
    for path, mode in ((ssh / "authorized_keys", 0o600), (ssh, 0o700)):
        path.chmod(mode)
        os.chown(path, owner, owner)
    if owner:
        os.chown(home, owner, owner)
        home.chmod(0o755)


def add_account(etc: Path, user: str, number: int) -> None:
    """Adds a user who can only log in with a key, on a disk written by `write_disk`."""
    for file, entry in (
        ("passwd", f"{user}:x:{number}:{number}::/home/{user}:/bin/bash"),
        ("group", f"{user}:x:{number}:"),
        ("shadow", f"{user}:*:19000:0:99999:7:::"),
    ):
        kept = [
            line
            for line in (etc / file).read_text().splitlines()
            if not line.startswith(f"{user}:") and line.split(":")[2:3] != [str(number)]
        ]
        (etc / file).write_text("\n".join([*kept, entry]) + "\n")


def _write_accounts(etc: Path) -> None:
    for file, entry in (
        ("passwd", f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash"),
        ("group", f"{USER}:x:{USER_ID}:"),
        ("shadow", f"{USER}:*:19000:0:99999:7:::"),
    ):
        machine = Path("/etc") / file
        lines = machine.read_text().splitlines() if machine.exists() else []
        kept = [line for line in lines if not line.startswith((f"{USER}:", "root:"))]
        root = next(
            (line for line in lines if line.startswith("root:")), "root:*:19000:0:99999:7:::"
        )
        if file == "passwd":
            root = "root:x:0:0:root:/root:/bin/bash"
        if file == "shadow":
            # sshd refuses a locked account ("!") even with a key.
            root = "root:*:19000:0:99999:7:::"
        (etc / file).write_text("\n".join([root, *kept, entry]) + "\n")
        (etc / file).chmod(0o640 if file == "shadow" else 0o644)


def _write_power_tools(usr: Path) -> None:
    for directory in (usr / "bin", usr / "sbin"):
        directory.mkdir(parents=True)
        for name in _SYSTEMD:
            if os.path.lexists(Path("/usr") / directory.name / name):
                # An overlay reads this device as a deleted file.
                os.mknod(directory / name, stat.S_IFCHR, os.makedev(0, 0))
    for name in _POWER_OFF:
        (usr / "sbin" / name).write_text(_POWER_OFF_SCRIPT)
        (usr / "sbin" / name).chmod(0o755)


def _write_python(directory: Path, python: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        # A script, because an interpreter started through a link does not find its virtual environment.
        (directory / name).write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (directory / name).chmod(0o755)


def enter(host: Identity) -> None:
    """Makes the host's file system the root of this process, which must have a new mount namespace."""
    system.mount("none", "/", flags=system.RECURSIVE | system.PRIVATE)
    root = host.directory / "root"
    root.mkdir(exist_ok=True)
    upper, work = host.disk / "upper", host.disk / "work"
    layers = f"lowerdir=/,upperdir={upper},workdir={work},index=off,metacopy=off,redirect_dir=off"
    system.mount("overlay", root, "overlay", data=layers)
    shutil.rmtree(host.disk / "tmp")
    (host.disk / "tmp").mkdir()
    (host.disk / "tmp").chmod(0o1777)
    for place, at, _ in PLACES:
        system.bind(host.disk / place, root / at)
    system.mount("tmpfs", root / "run", "tmpfs", data="mode=755")
    for name in ("lock", "sshd"):
        (root / "run" / name).mkdir()
    _make_devices(root / "dev")
    system.mount("proc", root / "proc", "proc")
    system.mount("sysfs", root / "sys", "sysfs")
    system.mount("cgroup2", root / "sys" / "fs" / "cgroup", "cgroup2")
    if (host.disk / cards.PLACE).is_dir():
        system.bind(host.disk / cards.PLACE, root / "proc" / "driver", read_only=True)
    for knob in KNOBS:
        if (root / knob).exists():
            system.bind("/dev/null", root / knob)
    (root / "mnt" / "shared").mkdir(parents=True, exist_ok=True)
    system.bind(host.shared, root / "mnt" / "shared")
    for kept in sorted({*_disks(), *host.keep}):
        system.bind(kept, root / kept.lstrip("/"), read_only=True)
    _place_host_keys(host, root / "run" / "sshd")
    system.change_root(root)


def _make_devices(dev: Path) -> None:
    system.mount("tmpfs", dev, "tmpfs", data="mode=755")
    for name in DEVICES:
        if (Path("/dev") / name).exists():
            system.bind(Path("/dev") / name, dev / name)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (dev / name).symlink_to(f"/proc/self/fd{target}")
    for name in ("pts", "shm", "mqueue"):
        (dev / name).mkdir()
    system.mount("devpts", dev / "pts", "devpts", data="newinstance,ptmxmode=0666,mode=0620")
    (dev / "ptmx").symlink_to("pts/ptmx")
    system.mount("tmpfs", dev / "shm", "tmpfs", data="mode=1777")


def _disks() -> list[str]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        at, kind = fields[4], fields[fields.index("-") + 1]
        if kind in _DISKS and at != "/" and not at.startswith(_OWN):
            found.append(at)
    return found


def _place_host_keys(host: Identity, sshd: Path) -> None:
    for file in host.directory.glob("ssh_host_*"):
        shutil.copy(file, sshd / file.name)
        (sshd / file.name).chmod(0o600)
    if (host.directory / "sshd_config").exists():
        shutil.copy(host.directory / "sshd_config", sshd / "sshd_config")
