"""Finds which disk of a machine a block volume is, since Mithril attaches raw disks without naming them.

A disk with a file system of ours has the volume's name, or a short form of it, as its label. A new one is recognized by
its size and by being blank: no partition, no file system, no mount. In doubt no disk is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError
from flowlite.node.attached_volumes.disks import label_of
from flowlite.node.quick_dataclass import dataclass
from provider_adapters import remote_commands

if TYPE_CHECKING:
    from flowlite.connect.base import Connection

_SECONDS = 60.0
_GB = 10**9
# Allows for GB of 10^9 or 2^30 bytes, and for what a provider reserves.
_SMALLEST, _LARGEST = 0.97, 1.1
_LIST = ["lsblk", "-b", "-P", "-o", "NAME,TYPE,SIZE,MOUNTPOINT,PKNAME,FSTYPE,LABEL"]


@dataclass(frozen=True, slots=True)
class Disk:
    """A whole disk that is not in use. `label` is that of its file system, "" for none."""

    device: str
    size: int
    filesystem: str
    label: str


def find(connection: Connection, volumes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each block volume by name {"device", "size_bytes"}. Raises NodeUnreachable, ProviderError."""
    if not volumes:
        return {}
    done = remote_commands.run(connection, _LIST, _SECONDS)
    if done.code != 0:
        why = remote_commands.said(done)
        raise ProviderError(f"the disks of the machine cannot be listed: {why}")
    return assign(free_disks(done.stdout.decode("utf-8", "replace")), volumes)


def free_disks(listing: str) -> list[Disk]:
    """The whole disks that are not in use, from the output of `lsblk -b -P`."""
    rows = [
        dict(part.partition("=")[::2] for part in shlex.split(line))
        for line in listing.splitlines()
        if line.strip()
    ]
    parents = {row.get("PKNAME", "") for row in rows}
    return [
        Disk(f"/dev/{row['NAME']}", int(row["SIZE"]), row.get("FSTYPE", ""), row.get("LABEL", ""))
        for row in rows
        if row["TYPE"] == "disk" and not row.get("MOUNTPOINT") and row["NAME"] not in parents
    ]


def assign(disks: Sequence[Disk], volumes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Assigns disks to volumes. Raises ProviderError if that is not certain."""
    found: dict[str, Disk] = {}
    for name in (str(volume["name"]) for volume in volumes):
        labelled = [disk for disk in disks if disk.label == label_of(name)]
        if len(labelled) == 1:
            found[name] = labelled[0]
    for volume in volumes:
        name = str(volume["name"])
        if name not in found:
            found[name] = _new(name, float(volume["size_gb"]), disks, found, volumes)
    return {name: {"device": d.device, "size_bytes": d.size} for name, d in found.items()}


def _new(
    name: str,
    size_gb: float,
    disks: Sequence[Disk],
    found: Mapping[str, Disk],
    volumes: Sequence[Mapping[str, Any]],
) -> Disk:
    """The one blank disk of that size that is left."""
    taken = {disk.device for disk in found.values()}
    blank = [
        disk
        for disk in disks
        if disk.device not in taken
        and not disk.filesystem
        and _SMALLEST <= disk.size / (size_gb * _GB) <= _LARGEST
    ]
    twins = [v for v in volumes if v["name"] not in found and float(v["size_gb"]) == size_gb]
    if blank and len(blank) == len(twins):
        # Both are new and alike, so either may be used.
        return blank[0]
    told = ", ".join(
        f"{d.device} ({d.size / _GB:.0f} GB, {d.filesystem or 'blank'})" for d in disks
    )
    raise ProviderError(
        f"which disk of the machine is the volume {name} ({size_gb:g} GB) is not certain: it has {told or 'none'}. "
        "flowlite formats only a blank disk of the right size"
    )
