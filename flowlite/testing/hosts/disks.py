"""Disks that are attached to rented machines: real block devices, each a file of the cluster, on one machine at a time.

A disk is a loop device, which the kernel takes away by itself as soon as nobody has it open or mounted. The room has it
open for as long as it is attached. So none is left when the room ends, however that comes about.

On the machine it appears as the cloud's own do: under their name in /dev, with their serial number and size in /sys. A
rented machine sees no other disk, and none of the real machine's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flowlite.testing.hosts import system

_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE = 0x4C0A, 0x4C82
_AUTOCLEAR = 4
_SECTOR = 512
# struct loop_config: two numbers, struct loop_info64, and what is reserved.
_CONFIGURATION = struct.Struct("=II5Q4I64s64s32s2Q8Q")
_LONGEST_NAME = 63
_SETTLE_SECONDS = 30.0
# Where /sys shows block devices; rented machines have their own in these places.
_BLOCK, _CLASS, _NUMBERS = "sys/block", "sys/class/block", "sys/dev/block"


@dataclass(frozen=True)
class Appearance:
    """What a disk looks like on its machine.

    Attributes:
        name: Of its device, such as "nvme1n1".
        serial: As its controller says; "" for a disk that has none.
        links: Other names for it below /dev, such as "disk/by-id/…".
    """

    name: str
    serial: str = ""
    links: tuple[str, ...] = ()


class LoopDevice:
    """A file as a block device, until nobody has it open or mounted."""

    def __init__(self, file: Path) -> None:
        self.size = file.stat().st_size
        self._path, self._descriptor = _configure(file)
        self.number = os.fstat(self._descriptor).st_rdev

    def is_busy(self) -> bool:
        """Whether some machine has it mounted, or holds it open as its own."""
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return True
        return False

    def close(self) -> None:
        """Lets go of it. What was written to it is in the file."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)


def _configure(file: Path) -> tuple[str, int]:
    """A free loop device that stands for the file: its path and a descriptor of it."""
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    name = os.fsencode(file.name)[:_LONGEST_NAME]
    facts = (0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, name, b"", b"", *(0,) * 10)
    try:
        while True:
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            path = f"/dev/loop{number}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIGURATION.pack(backing, _SECTOR, *facts))
            except OSError as error:
                os.close(device)
                # Another process on this machine took it meanwhile.
                if error.errno != errno.EBUSY:
                    raise
                continue
            return path, device
    finally:
        os.close(backing)
        os.close(control)


class Machine(Protocol):
    """What a disk is attached to: a slot of the room (slot.py)."""

    taker: str | None
    disks: dict[str, tuple[int, int, Appearance]]

    @property
    def name(self) -> str:
        """As the room calls it."""

    def show_disk(self, disk: str) -> None:
        """Has the disk appear."""

    def hide_disk(self, disk: str) -> None:
        """Has it vanish."""


@dataclass
class _Attached:
    device: LoopDevice
    slot: Machine
    look: Appearance


class Disks:
    """What the room can do with disks."""

    def __init__(self, directory: Path, find: Callable[[str], Machine]) -> None:
        """`find` gives the slot of a name."""
        self._directory = directory
        self._find = find
        self._attached: dict[str, _Attached] = {}

    def do_make_disk(self, disk: str, size: int) -> None:
        """A blank disk of so many bytes."""
        self._directory.mkdir(exist_ok=True)
        with open(self._directory / disk, "xb") as file:
            file.truncate(size)

    def do_remove_disk(self, disk: str) -> None:
        """A disk and all that is on it. One that is not there is no error."""
        if not self.do_detach_disk(disk):
            raise RuntimeError(f"{disk} is mounted by {self._attached[disk].slot.name}")
        (self._directory / disk).unlink(missing_ok=True)

    def do_attach_disk(
        self, name: str, taker: str, disk: str, device: str, serial: str, links: list[str]
    ) -> bool:
        """Has a disk appear on a slot, now or when it starts; False as long as another still has it."""
        slot = self._find(name)
        if slot.taker != taker:
            raise RuntimeError(f"{name} has been given to somebody else")
        if disk in self._attached and not self.do_detach_disk(disk):
            return False
        look = Appearance(device, serial, tuple(links))
        attached = _Attached(LoopDevice(self._directory / disk), slot, look)
        self._attached[disk] = attached
        slot.disks[disk] = (attached.device.number, attached.device.size, look)
        slot.show_disk(disk)
        return True

    def do_detach_disk(self, disk: str) -> bool:
        """Takes a disk off its machine; False as long as it is mounted there. One that nobody has is no error."""
        attached = self._attached.get(disk)
        if attached is None:
            return True
        if attached.device.is_busy():
            return False
        attached.slot.hide_disk(disk)
        attached.device.close()
        del self._attached[disk]
        return True

    def clear(self) -> None:
        """No disk is there any more; every slot has ended."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        for disk, attached in list(self._attached.items()):
            while not self.do_detach_disk(disk) and time.monotonic() < deadline:
                time.sleep(0.01)
            if self._attached.pop(disk, None) is not None:
                # Somebody keeps the namespace of a machine that has ended; the device goes when that does.
                attached.device.close()
        for file in self._directory.glob("*"):
            file.unlink()


def prepare(root: Path) -> None:
    """Takes the real machine's disks out of what a machine sees in /sys."""
    for place in (_BLOCK, _CLASS, _NUMBERS):
        system.mount("tmpfs", root / place, "tmpfs", data="mode=755")


def show(root: Path, number: int, size: int, look: Appearance) -> None:
    """Has a disk appear below the root of a machine."""
    entry = root / _BLOCK / look.name
    for part in ("device", "queue", "holders", "slaves"):
        (entry / part).mkdir(parents=True)
    where = f"{os.major(number)}:{os.minor(number)}"
    facts = {"dev": where, "size": str(size // _SECTOR), "ro": "0", "removable": "0"}
    if look.serial:
        facts["device/serial"] = look.serial
    for name, text in facts.items():
        (entry / name).write_text(f"{text}\n")
    (root / _CLASS / look.name).symlink_to(f"../../block/{look.name}")
    (root / _NUMBERS / where).symlink_to(f"../../block/{look.name}")
    os.mknod(root / "dev" / look.name, stat.S_IFBLK | 0o660, number)
    for link in look.links:
        path = root / "dev" / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(root / "dev" / look.name, path.parent))


def hide(root: Path, number: int, look: Appearance) -> None:
    """Has it disappear."""
    where = f"{os.major(number)}:{os.minor(number)}"
    gone = [f"dev/{link}" for link in look.links]
    gone += [f"dev/{look.name}", f"{_NUMBERS}/{where}", f"{_CLASS}/{look.name}"]
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            (root / path).unlink()
    shutil.rmtree(root / _BLOCK / look.name, ignore_errors=True)
