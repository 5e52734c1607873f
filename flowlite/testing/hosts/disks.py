"""Disks for rented machines: real block devices backed by files of the cluster, each on one machine at a time.

A disk is a loop device with automatic clearing: the kernel removes it when its last descriptor and its last mount are
gone. The room holds it open while it is attached, so no device is left when the room ends, even if it was killed.

On the machine a disk appears as on the cloud: with the cloud's name in /dev, and its serial number and size in /sys. A
rented machine sees no other disks, and none of the real machine's.
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
# struct loop_config: two numbers, struct loop_info64, and reserved space.
_CONFIGURATION = struct.Struct("=II5Q4I64s64s32s2Q8Q")
_LONGEST_NAME = 63
_SETTLE_SECONDS = 30.0
# The directories of /sys that list block devices. Rented machines have their own.
_BLOCK, _CLASS, _NUMBERS = "sys/block", "sys/class/block", "sys/dev/block"


@dataclass(frozen=True)
class Appearance:
    """What a disk looks like on its machine.

    Attributes:
        name: The device name, such as "nvme1n1".
        serial: The controller's serial number; "" for a disk without one.
        links: Further names below /dev, such as "disk/by-id/…".
    """

    name: str
    serial: str = ""
    links: tuple[str, ...] = ()


class LoopDevice:
    """A file attached as a block device until it is neither open nor mounted."""

    def __init__(self, file: Path) -> None:
        self.size = file.stat().st_size
        self._path, self._descriptor = _configure(file)
        self.number = os.fstat(self._descriptor).st_rdev

    def is_busy(self) -> bool:
        """Whether a machine has it mounted, or open for exclusive use."""
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return True
        return False

    def close(self) -> None:
        """Closes our descriptor of it. What was written is in the file."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)


def _configure(file: Path) -> tuple[str, int]:
    """Attaches the file to a free loop device. Returns the device's path and a descriptor of it."""
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
                # Another process took the device in the meantime.
                if error.errno != errno.EBUSY:
                    raise
                continue
            return path, device
    finally:
        os.close(backing)
        os.close(control)


class Machine(Protocol):
    """A machine to which disks are attached: a slot of the room (`slot.py`)."""

    taker: str | None
    disks: dict[str, tuple[int, int, Appearance]]

    @property
    def name(self) -> str:
        """Its name in the room."""

    def show_disk(self, disk: str) -> None:
        """Makes the disk appear."""

    def hide_disk(self, disk: str) -> None:
        """Makes the disk disappear."""


@dataclass
class _Attached:
    device: LoopDevice
    slot: Machine
    look: Appearance


class Disks:
    """The room's operations on disks."""

    def __init__(self, directory: Path, find: Callable[[str], Machine]) -> None:
        """`find` returns the slot with a given name."""
        self._directory = directory
        self._find = find
        self._attached: dict[str, _Attached] = {}

    def do_make_disk(self, disk: str, size: int) -> None:
        """Creates a blank disk of `size` bytes."""
        self._directory.mkdir(exist_ok=True)
        with open(self._directory / disk, "xb") as file:
            file.truncate(size)

    def do_remove_disk(self, disk: str) -> None:
        """Deletes a disk and its contents. A disk that does not exist is no error."""
        if not self.do_detach_disk(disk):
            raise RuntimeError(f"{disk} is mounted by {self._attached[disk].slot.name}")
        (self._directory / disk).unlink(missing_ok=True)

    def do_attach_disk(
        self, name: str, taker: str, disk: str, device: str, serial: str, links: list[str]
    ) -> bool:
        """Attaches a disk to a slot, running or not. Returns False while another machine has it."""
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
        """Detaches a disk. Returns False while it is mounted. A disk that is not attached is no error."""
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
        """Removes all disks, after every slot has ended."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        for disk, attached in list(self._attached.items()):
            while not self.do_detach_disk(disk) and time.monotonic() < deadline:
                time.sleep(0.01)
            if self._attached.pop(disk, None) is not None:
                # The mount namespace of an ended machine still exists. The device is cleared with the namespace.
                attached.device.close()
        for file in self._directory.glob("*"):
            file.unlink()


def prepare(root: Path) -> None:
    """Hides the real machine's disks from a machine's /sys."""
    for place in (_BLOCK, _CLASS, _NUMBERS):
        system.mount("tmpfs", root / place, "tmpfs", data="mode=755")


def show(root: Path, number: int, size: int, look: Appearance) -> None:
    """Makes a disk appear below a machine's root."""
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
    """Makes a disk disappear."""
    where = f"{os.major(number)}:{os.minor(number)}"
    gone = [f"dev/{link}" for link in look.links]
    gone += [f"dev/{look.name}", f"{_NUMBERS}/{where}", f"{_CLASS}/{look.name}"]
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            (root / path).unlink()
    shutil.rmtree(root / _BLOCK / look.name, ignore_errors=True)
