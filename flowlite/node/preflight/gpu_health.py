"""Whether the GPUs of this node are sound: what `nvidia-smi` and the kernel's log say of them.

A GPU is sick when it has fallen off the bus, when it has uncorrectable memory errors, or when the kernel has logged an
XID that means broken hardware. XIDs that programs cause (an illegal address, an assertion in a kernel) do not count.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from shutil import which

from ..quick_dataclass import dataclass
from ..system import node_facts, processes

HARDWARE_XIDS: Mapping[int, str] = {
    48: "an uncorrectable memory error",
    62: "a halt of its internal controller",
    64: "a row of memory that cannot be replaced",
    74: "an NVLink error",
    79: "fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "a firmware processor that does not answer",
    120: "a failure of its firmware processor",
    140: "an unrecovered memory error",
}
"""XIDs that mean broken hardware, by NVIDIA's list, each with what it means."""
USABLE = rf"""
for each in {node_facts.NVIDIA}/*; do
    device=/dev/nvidia$(sed -n 's/^Device Minor:[[:space:]]*//p' "$each/information" 2>/dev/null)
    [ -r "$device" ] && [ -w "$device" ] && basename "$each"
done
"""
"""What `usable` does, for the shell of a host: prints a PCI address in each line."""
QUERY = "index,pci.bus_id,ecc.errors.uncorrected.volatile.total"
_SECONDS = 10.0
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,6})\b")
_UNAVAILABLE = re.compile(
    r"GPU ?([0-9a-fA-F:.]+)?: (?:GPU is lost|Unknown Error)|\[?GPU is lost\]?"
)
_NAMED = 4
# Also read from hosts that may say anything (`flow hosts check`).
_NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True)
class GpuHealth:
    """What was read at one moment.

    Attributes:
        lost: What `nvidia-smi` said of a GPU that it cannot reach; "" if it reached all.
        missing: GPUs that the driver has, and this process may use, and `nvidia-smi` does not list.
        errors: Uncorrectable memory errors since the driver was loaded, by the index of the GPU.
        xids: How often the kernel logged which hardware XID of which GPU: (name of the GPU, XID).
    """

    lost: str = ""
    missing: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def out_of_reach(self) -> str:
        """Why a GPU of the node cannot be used at all; "" if all can."""
        if self.missing and not self.lost:
            gpus = "1 GPU has" if self.missing == 1 else f"{self.missing} GPUs have"
            return f"{gpus} fallen off the bus: the driver has more GPUs than nvidia-smi lists"
        return self.lost

    def old_errors(self) -> str:
        """Returns which GPU has had uncorrectable memory errors since its driver was loaded; "" if none has."""
        found = (f"GPU {index} has {count}" for index, count in self.errors.items() if count)
        told = next(found, "")
        return told and f"{told} uncorrectable memory errors (ECC) since it was last reset"

    def troubles(self, before: GpuHealth) -> list[str]:
        """Returns what is wrong, in words. Errors count only if they were not there `before`."""
        found = [self.out_of_reach] if self.out_of_reach else []
        for index, count in self.errors.items():
            if (new := count - before.errors.get(index, 0)) > 0:
                found.append(f"GPU {index} has {new} new uncorrectable memory errors (ECC)")
        for (name, xid), count in self.xids.items():
            if count > before.xids.get((name, xid), 0):
                found.append(f"XID {xid} of {name} in the kernel's log: {HARDWARE_XIDS[xid]}")
        return found[:_NAMED]


def read(visible: str | None = None) -> GpuHealth:
    """Returns the health of this node's GPUs, as far as it can be read; nothing is wrong where it cannot.

    Args:
        visible: Indices of the GPUs that belong to this node; None for all.
    """
    tool = which("nvidia-smi")
    if tool is None:
        return GpuHealth()
    said = _output([tool, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"])
    log = _output(["dmesg"])
    return parse(said, log, usable(), visible)


def usable() -> list[str]:
    """Returns the PCI addresses of the GPUs that this process may use."""
    try:
        return [each.bus for each in node_facts.listed_gpus() if each.usable]
    except OSError:
        return []


def parse(said: str, log: str, known: Iterable[str], visible: str | None = None) -> GpuHealth:
    """Returns the health of GPUs.

    Args:
        said: The output of `nvidia-smi`; "" if it did not end in time, which proves nothing.
        log: The kernel's log.
        known: The PCI addresses of the GPUs that this process may use.
        visible: As for `read`.
    """
    ours = None if visible is None else {each.strip() for each in visible.split(",")}
    lost = next((line.strip()[:200] for line in said.splitlines() if _UNAVAILABLE.search(line)), "")
    errors: dict[str, int] = {}
    names: dict[str, str] = {}
    listed = 0
    for line in said.splitlines():
        index, bus, count = [*(part.strip() for part in line.split(",")), "", "", ""][:3]
        if not _NUMBER.fullmatch(index):
            continue
        listed += 1
        names[_bus(bus)] = index
        if _NUMBER.fullmatch(count) and (ours is None or index in ours):
            errors[index] = int(count)
    buses = {_bus(each) for each in known}
    xids: Counter[tuple[str, int]] = Counter()
    for bus, number in _XID.findall(log):
        index = names.get(_bus(bus), "")
        concerns = (ours is None or index in ours) if index else _bus(bus) in buses
        if concerns and int(number) in HARDWARE_XIDS:
            xids[f"GPU {index}" if index else f"the GPU at PCI {bus}", int(number)] += 1
    missing = max(0, len(buses) - listed) if listed and ours is None else 0
    return GpuHealth(lost, missing, errors, xids)


def _bus(text: str) -> str:
    """A PCI address without its domain and function, which tools write in different ways: `41:00`."""
    return ":".join(text.lower().partition(".")[0].split(":")[-2:])


def _output(argv: list[str]) -> str:
    """Returns the output of a program; "" if it cannot be run, or does not end in time."""
    try:
        done = processes.run_within(_SECONDS, argv, stderr=subprocess.STDOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
