"""The system calls behind the hosts, for Python versions whose `os` does not have them yet."""

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
    """Moves the calling thread to new namespaces."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Moves the calling thread into a namespace."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Calls mount(2)."""
    done = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(done, f"mount {source} at {target}")


def bind(source: Path | str, target: Path, *, read_only: bool = False) -> None:
    """Bind-mounts a file or directory. The target is created if it does not exist."""
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(source), target, flags=BIND)
    if read_only:
        mount("none", target, flags=BIND | REMOUNT | READ_ONLY)


def unmount(target: Path | str) -> None:
    """Detaches a mount; its users keep access. A path where nothing is mounted is no error."""
    if _libc.umount2(os.fsencode(target), _DETACH) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, f"unmount {target}: {os.strerror(number)}")


def change_root(root: Path) -> None:
    """Makes `root` (a mount) the root of this mount namespace, and detaches the old one."""
    os.chdir(root)
    number = _PIVOT_ROOT[os.uname().machine]
    # The same directory for both, as in pivot_root(2): the old root is stacked on the new one and unmounted next.
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends."""
    _check(_libc.prctl(_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def set_hostname(name: str) -> None:
    """Sets the host name of this UTS namespace."""
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


@contextmanager
def inside_network(fd: int) -> Iterator[None]:
    """Moves the calling thread, and the processes it starts, to another network namespace."""
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
    """A new network namespace. It exists as long as the returned descriptor or a process in it."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(NEWNET)
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        setns(before, NEWNET)
        return made
    finally:
        os.close(before)


def configure(interface: str, address: str | None = None, netmask: str = "255.255.255.0") -> None:
    """Sets the address of an interface in this network namespace and brings it up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        if address is not None:
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
                packed = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, interface.encode().ljust(16, b"\0") + packed)
        flags = _flags(control, interface)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", interface.encode(), flags | _UP))


def wait_for_carrier(interfaces: Sequence[str], timeout: float = 90) -> None:
    """Waits until interfaces of this network namespace have a carrier, which can take the kernel a second to notice."""
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
    """Like os.fork(), but the child is process 1 of a new PID namespace."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(NEWPID)
        try:
            pid = os.fork()
        except OSError:
            setns(own, NEWPID)
            raise
        if pid:
            # Otherwise the next fork would go to the same namespace, and fail once its process 1 has ended.
            setns(own, NEWPID)
        return pid
    finally:
        os.close(own)
