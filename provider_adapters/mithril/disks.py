"""Finds which disk of a machine a block volume is, since Mithril attaches raw disks without naming them.

A disk with a file system of ours has the volume's name, or a short form of it, as its label. A new one is recognized by
its size and by being blank: no partition, no file system, no mount. In doubt no disk is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.attached_volumes.disks import LONGEST_LABEL, label_of
from flowlite.node.quick_dataclass import dataclass

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
    try:
        done = connection.run(_LIST, timeout=_SECONDS)
    except TimeoutError as error:
        raise NodeUnreachable(f"it runs nothing within {_SECONDS:.0f} s") from error
    if done.code != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise ProviderError(f"the disks of the machine cannot be listed: {said}")
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
    names = [str(volume["name"]) for volume in volumes]
    for name in names:
        labels = {label_of(name)}
        beginning = name[:LONGEST_LABEL]
        if not any(other.startswith(beginning) for other in names if other != name):
            # The label that earlier versions gave.
            labels.add(beginning)
        labelled = [disk for disk in disks if disk.label in labels]
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
