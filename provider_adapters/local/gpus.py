"""The GPUs of this machine, found with `nvidia-smi` (no framework is imported) and used by one task at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import node_facts
from flowlite.spec.gpu import KINDS, GpuRequest, kind_named

_FIELDS = "index,uuid,name,memory.total"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: index in PCI order, id, the driver's name for it, and memory in GB as vendors count (2³⁰ bytes)."""

    index: int
    uuid: str
    name: str
    memory_gb: float

    @property
    def kind(self) -> str:
        """The canonical kind ("h100"); "" if no GPU string names it."""
        return kind_named(self.name)

    def fits(self, request: GpuRequest) -> bool:
        """Whether the GPU matches a request."""
        if self.kind != request.kind:
            return False
        return request.memory_gb in (None, KINDS[self.kind].nearest_size(self.memory_gb))


def discover() -> list[Gpu]:
    """The GPUs that this process may use (respecting CUDA_VISIBLE_DEVICES), by index; none without a driver."""
    found = parse(node_facts.ask_nvidia_smi(_FIELDS))
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse(text: str) -> list[Gpu]:
    """Parses the output of `nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or not parts[0].isdigit():
            continue
        mebibytes = float(parts[3]) if re.fullmatch(r"\d+(\.\d+)?", parts[3]) else 0.0
        found.append(Gpu(int(parts[0]), parts[1], parts[2], mebibytes / 1024))
    return sorted(found, key=lambda gpu: gpu.index)


def visible(gpus: Sequence[Gpu], mask: str | None) -> list[Gpu]:
    """The GPUs that a CUDA_VISIBLE_DEVICES value allows; all if it is None."""
    if mask is None:
        return list(gpus)
    chosen = []
    for word in (word.strip() for word in mask.split(",")):
        match = [
            g for g in gpus if word == str(g.index) or (len(word) > 4 and g.uuid.startswith(word))
        ]
        if not match:
            # Like the driver: entries after an unknown one are not visible.
            break
        chosen.append(match[0])
    return sorted(dict.fromkeys(chosen), key=lambda gpu: gpu.index)
