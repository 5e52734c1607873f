"""The system calls that make one machine look like many, for Pythons that do not have them in `os` yet."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWPID, NEWNET = 0x20000000, 0x40000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
_DETACH = 2
_SET_PDEATHSIG = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
_UP, _RUNNING = 1, 64

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Gives the calling thread namespaces of its own."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Moves the calling thread into a namespace."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """As mount(2)."""
    done = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(done, f"mount {source} at {target}")


def bind(source: Path | str, target: Path, *, read_only: bool = False) -> None:
    """Shows a file or directory at a second place, which is made if it is missing."""
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(source), target, flags=BIND)
    if read_only:
        mount("none", target, flags=BIND | REMOUNT | READ_ONLY)


def unmount(target: Path | str) -> None:
    """Takes a mount away; who still uses it keeps it. Nothing mounted there is no error."""
    if _libc.umount2(os.fsencode(target), _DETACH) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, f"unmount {target}: {os.strerror(number)}")


def change_root(root: Path) -> None:
    """Makes `root` (a mount) the root of this mount namespace, and takes the old one away."""
    os.chdir(root)
    number = _PIVOT_ROOT[os.uname().machine]
    # One directory for both, as pivot_root(2) explains: the old root lies on top of the new one, and comes off.
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def die_with_parent() -> None:
    """Has the kernel kill this process when the one that forked it ends."""
    _check(_libc.prctl(_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def set_hostname(name: str) -> None:
    """The name of this UTS namespace."""
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


@contextmanager
def inside_network(fd: int) -> Iterator[None]:
    """The calling thread, and what it starts, lives in another network namespace meanwhile."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fd, NEWNET)
        try:
            yield
        finally:
            setns(before, NEWNET)
    finally:
        os.close(before)


def new_network() -> int:
    """A network namespace that lives as long as the descriptor returned, or a process in it."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(NEWNET)
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        setns(before, NEWNET)
        return made
    finally:
        os.close(before)


def configure(interface: str, address: str | None = None, netmask: str = "255.255.255.0") -> None:
    """Gives an interface of this network namespace an address, and takes it into service."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        if address is not None:
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
                packed = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, interface.encode().ljust(16, b"\0") + packed)
        flags = _flags(control, interface)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", interface.encode(), flags | _UP))


def wait_for_carrier(interfaces: Sequence[str], timeout: float = 10) -> None:
    """Waits until interfaces of this network namespace carry frames, which can take the kernel a second to notice."""
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for interface in interfaces:
            while not _flags(control, interface) & _RUNNING:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no carrier on {interface}")
                time.sleep(0.001)


def _flags(control: socket.socket, interface: str) -> int:
    asked = struct.pack("16sH22x", interface.encode(), 0)
    flags: int = struct.unpack("16xH22x", fcntl.ioctl(control, _SIOCGIFFLAGS, asked))[0]
    return flags


def fork_into_new_pids() -> int:
    """As os.fork(), but the child is process 1 of a process namespace of its own."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(NEWPID)
        try:
            pid = os.fork()
        except OSError:
            setns(own, NEWPID)
            raise
        if pid:
            # Only what is forked next goes elsewhere; the one after it would fail without this.
            setns(own, NEWPID)
        return pid
    finally:
        os.close(own)
