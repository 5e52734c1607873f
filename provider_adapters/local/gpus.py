"""The GPUs of this machine: found with `nvidia-smi`, never by importing a framework, and lent to one task at a time."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from shutil import which

from flowlite.spec.gpu import KINDS, GpuRequest

_QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its index in PCI order, its id, its name to the driver, its memory in GB as makers count (2³⁰ bytes)."""

    index: int
    uuid: str
    name: str
    memory_gb: float

    @property
    def kind(self) -> str:
        """Canonical kind ("h100"), "" for one that no GPU string names."""
        words = re.sub(r"[^a-z0-9]+", " ", self.name.lower()).split()
        joined = ["".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, i + 4)]
        found = [kind for kind in KINDS if kind in joined]
        return max(found, key=len, default="")

    def fits(self, request: GpuRequest) -> bool:
        """Whether it is what was asked for. Some of the memory is kept by the driver, so the nearest size counts."""
        if self.kind != request.kind:
            return False
        sizes = KINDS[self.kind].memory_gb
        nearest = min(sizes, key=lambda size: abs(size - self.memory_gb))
        return request.memory_gb in (None, nearest)


def discover() -> list[Gpu]:
    """GPUs that this process may use (CUDA_VISIBLE_DEVICES is obeyed), by index; none where there is no driver."""
    program = which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, *_QUERY],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = parse(done.stdout) if done.returncode == 0 else []
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse(text: str) -> list[Gpu]:
    """GPUs from the lines of `nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or not parts[0].isdigit():
            continue
        mebibytes = float(parts[3]) if re.fullmatch(r"\d+(\.\d+)?", parts[3]) else 0.0
        found.append(Gpu(int(parts[0]), parts[1], parts[2], mebibytes / 1024))
    return sorted(found, key=lambda gpu: gpu.index)


def visible(gpus: Sequence[Gpu], mask: str | None) -> list[Gpu]:
    """Those that a CUDA_VISIBLE_DEVICES value lets through; all without one."""
    if mask is None:
        return list(gpus)
    chosen = []
    for word in (word.strip() for word in mask.split(",")):
        match = [
            g for g in gpus if word == str(g.index) or (len(word) > 4 and g.uuid.startswith(word))
        ]
        if not match:
            # As the driver does: what follows an unknown entry is not visible.
            break
        chosen.append(match[0])
    return sorted(dict.fromkeys(chosen), key=lambda gpu: gpu.index)
