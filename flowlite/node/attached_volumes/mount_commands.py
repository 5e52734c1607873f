"""Mounts network file systems and attached disks: the command lines, and their execution.

{"share": "nfs", "address", "export", "options"}       EFS, or any NFS 4.1
{"share": "lustre", "address", "export", "options"}    FSx for Lustre
{"share": "disk", "serial", "devices", "size_bytes", "filesystem"}     a disk (disks.py)
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Mapping
from typing import Any

from ..mount_namespace.unmount import is_mounted
from ..mount_namespace.unmount import unmount as unmount_path
from . import disks
from .run import NotMounted, ask, do, program

_SECONDS = 150.0
_BUSY_SECONDS = 10.0
_LATE = "; does the security group of the file system let this node in?"
_MISSING = "the kernel of this machine cannot mount {kind}; {advice}"
_ADVICE = {
    "nfs": "install nfs-common (Debian, Ubuntu) or nfs-utils (Amazon Linux, Fedora) in the image",
    "lustre": "install the Lustre client for its kernel in the image",
}


def mount(volume: Mapping[str, Any]) -> None:
    """Mounts a volume at its source. Does nothing if it is mounted already. Raises NotMounted."""
    source = str(volume["source"])
    if is_mounted(source):
        return
    what = f"volume {volume['name']!r}"
    if volume["share"] == "disk":
        device = disks.ready(volume)
        do(disk_command(volume, device), what, _SECONDS)
        return
    if volume["share"] == "nfs" and program("mount.nfs4") is None:
        _mount_nfs_by_kernel(volume, what)
        return
    if volume["share"] == "lustre" and program("mount.lustre") is None:
        raise NotMounted(f"{what}: {_MISSING.format(kind='Lustre', advice=_ADVICE['lustre'])}")
    do(network_command(volume), what, _SECONDS, _LATE)


def network_command(volume: Mapping[str, Any]) -> list[str]:
    """Returns the command that mounts a network file system. Pure."""
    origin = f"{volume['address']}:{volume['export']}"
    source, options = str(volume["source"]), str(volume["options"])
    if volume["share"] == "lustre":
        return ["mount", "-t", "lustre", "-o", options, origin, source]
    # The program that `mount -t nfs4` would run, but mount looks for it in /sbin only.
    return ["mount.nfs4", origin, source, "-o", options]


def disk_command(volume: Mapping[str, Any], device: str) -> list[str]:
    """Returns the command that mounts a disk. Pure."""
    return [
        "mount",
        "-t",
        str(volume["filesystem"]),
        "-o",
        "noatime",
        device,
        str(volume["source"]),
    ]


def kernel_options(options: str, server: str, own: str) -> str:
    """Returns the options that mount.nfs4 would pass to the kernel: the same, with addresses. Pure."""
    return f"{options},addr={server}" + (f",clientaddr={own}" if own else "")


def unmount(source: str) -> None:
    """Unmounts a volume after all data is written to it; lazily if it stays busy for too long."""
    until = time.monotonic() + _BUSY_SECONDS
    while is_mounted(source):
        try:
            if ask(["umount", source], source, _SECONDS).returncode == 0:
                continue
        except OSError as error:
            sys.stderr.write(f"{error}\n")
        if time.monotonic() > until:
            _flush(source)
            unmount_path(source)
            return
        time.sleep(0.1)


def _flush(source: str) -> None:
    """Makes the kernel write out pending data. Does not wait long for a file system that hangs."""
    try:
        ask(["sync", "-f", source], source, _BUSY_SECONDS)
    except OSError as error:
        sys.stderr.write(f"{error}\n")


def _mount_nfs_by_kernel(volume: Mapping[str, Any], what: str) -> None:
    """Mounts NFS without nfs-common, whose helper does little else for NFS 4.1."""
    import socket

    from ..system.libc import Libc

    server = str(volume["address"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((server, 2049))
            own = str(probe.getsockname()[0])
        except OSError:
            own = ""
    try:
        options = kernel_options(str(volume["options"]), server, own)
        origin = f"{server}:{volume['export']}"
        Libc().mount(origin, str(volume["source"]), "nfs4", 0, options)
    except OSError as error:
        if error.errno == errno.ENODEV:
            missing = _MISSING.format(kind="NFS", advice=_ADVICE["nfs"])
            raise NotMounted(f"{what}: {missing}") from error
        raise NotMounted(
            f"{what} at {server} cannot be mounted: {error.strerror or error}"
        ) from error
