"""Disks attached to this machine: finds a disk's device, and formats it if it is blank.

The content of a disk is never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .run import NotMounted, ask, do

WAIT_SECONDS = 60.0
"""For the device of a newly attached disk to appear."""
LONGEST_LABEL = 16
_WHOLE = re.compile(r"nvme\d+n\d+")
_PROBE_BYTES = 1 << 20
_PROBE_SECONDS = 60.0
_FORMAT_SECONDS = 600.0


class Content(NamedTuple):
    """The content of a disk, according to `blkid` and to its bytes."""

    filesystem: str
    blank: bool


def ready(volume: Mapping[str, Any]) -> str:
    """Returns the device of a disk, with a file system on it. Raises NotMounted."""
    what = f"volume {volume['name']!r}"
    device = find(volume)
    if device is None:
        raise NotMounted(
            f"{what}: its disk ({volume['serial']}) does not appear on this node within {WAIT_SECONDS:g} s"
        )
    content = look(device, what)
    wanted = str(volume["filesystem"])
    if content.filesystem == wanted:
        return device
    if content.filesystem:
        raise NotMounted(
            f"{what}: its disk {device} has {content.filesystem} on it, not {wanted}; it is left as it is. Use a disk "
            "that is blank or that flowlite made"
        )
    if not content.blank:
        raise NotMounted(
            f"{what}: its disk {device} is not blank, and what is on it is not known; it is left as it is. Wipe it "
            "yourself, or use another"
        )
    do(format_command(wanted, device, str(volume["name"])), what, _FORMAT_SECONDS)
    return device


def format_command(filesystem: str, device: str, name: str) -> list[str]:
    """Returns the command that makes a file system on a blank disk. Pure."""
    return [
        f"mkfs.{filesystem}",
        "-q",
        *("-m", "0"),
        *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
        *("-L", label_of(name)),
        device,
    ]


def label_of(name: str) -> str:
    """Returns the label of a volume's file system, which no other volume has: ext4 takes 16 bytes. Pure."""
    if len(name) <= LONGEST_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: LONGEST_LABEL - 8]}-{digest[:7]}"


def find(volume: Mapping[str, Any], system: Path = Path("/sys/class/block")) -> str | None:
    """Returns a disk's device: by serial number, or else by the name it was attached under, if the size is right."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        if (device := by_serial(str(volume["serial"]), system)) is not None:
            return device
        for name in volume.get("devices", ()):
            if _size(str(name)) == int(volume["size_bytes"]):
                return os.path.realpath(str(name))
        if time.monotonic() > until:
            return None
        time.sleep(0.2)


def by_serial(serial: str, system: Path) -> str | None:
    """Returns the NVMe device with that serial number."""
    for entry in sorted(system.glob("nvme*n*")):
        try:
            found = (entry / "device" / "serial").read_text().strip()
        except OSError:
            continue
        if _WHOLE.fullmatch(entry.name) and found.replace("-", "") == serial:
            return f"/dev/{entry.name}"
    return None


def look(device: str, what: str) -> Content:
    """Returns the content of a disk. Raises NotMounted if it cannot be determined for certain."""
    done = ask(
        ["blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "value", device], what, _PROBE_SECONDS
    )
    if done.returncode not in (0, 2):
        said = done.stderr.decode("utf-8", "replace").strip() or f"status {done.returncode}"
        raise NotMounted(f"{what}: what is on {device} cannot be told: {said}")
    found = done.stdout.decode("utf-8", "replace").split()
    if found:
        return Content(found[0], False)
    listed = ask(["lsblk", "-n", "-o", "FSTYPE,TYPE", device], what, _PROBE_SECONDS)
    lines = listed.stdout.decode("utf-8", "replace").strip().splitlines()
    if len(lines) != 1 or len(lines[0].split()) != 1:
        return Content("", False)
    return Content("", _all_zero(device, what))


def _all_zero(device: str, what: str) -> bool:
    """Whether a disk begins and ends with zeros, as a new one does."""
    try:
        descriptor = os.open(device, os.O_RDONLY)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            places = (0, max(0, size - _PROBE_BYTES))
            return size > 0 and not any(
                any(os.pread(descriptor, _PROBE_BYTES, each)) for each in places
            )
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotMounted(f"{what}: {device} cannot be read: {error.strerror}") from error


def _size(device: str) -> int:
    """Returns the size of a disk in bytes; 0 if there is none."""
    try:
        descriptor = os.open(device, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
