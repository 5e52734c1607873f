"""Facts about a worker's process besides its stack: whether torch is loaded, and connected to the other ranks."""

from __future__ import annotations

import os

from ..leader_run import mpi
from ..system.atomic_files import names_in, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMMON = (
    "NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DIST", "FI_", "UCX_", "HOROVOD_", "CUBLAS_",
    "NVIDIA_TF32", "PYTHONHASHSEED",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "ACCELERATE_", "FSDP_",
    "AXOLOTL_", "SEED", "GLOBAL_SEED", "PL_GLOBAL_SEED", "HF_HOME",
)  # fmt: skip
"""Prefixes of the variables that affect how ranks communicate, or what they compute."""
_OURS_DIFFER = ("HOROVOD_RANK", "HOROVOD_LOCAL", "HOROVOD_CROSS", "HOROVOD_HOSTNAME", "FLOW_")
_ESTABLISHED, _LISTENING = "01", "0A"


def telling(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that affect how ranks communicate and compute."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(COMMON) and not name.startswith(_OURS_DIFFER)
    }


def of_process(pid: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns {"torch": whether it is loaded, "group": whether it is connected to the master port, "backends"}.

    `group` is None if it is unknown, and under MPI, whose programs need no master port. `backends` are those
    of its process groups that can be recognised.

    Args:
        environment: The environment that the process was started with.
    """
    port, world = environment.get("MASTER_PORT", ""), environment.get("WORLD_SIZE", "1")
    several = port.isdecimal() and world.isdecimal() and int(world) > 1
    needed = several and mpi.ranks(environment) is None
    return {
        "torch": has_torch(pid),
        "group": _talks_at(pid, int(port)) if needed else None,
        "backends": backends(pid),
    }


def backends(pid: int) -> list[str]:
    """Returns the backends of the process's groups, by the names that torch gives to their threads."""
    threads = f"/proc/{pid}/task"
    names = {text_of(f"{threads}/{thread}/comm") for thread in names_in(threads)}
    return [each for each in ("gloo", "nccl") if any(f"pt_{each}" in name for name in names)]


def has_torch(pid: int) -> bool:
    """Whether torch is loaded in a process."""
    return "libtorch" in text_of(f"/proc/{pid}/maps")


def _talks_at(pid: int, port: int) -> bool | None:
    """Whether the process has a connection from or to this port, or listens on it; None if that cannot be seen."""
    try:
        inodes = {
            target[8:-1]
            for name in os.listdir(f"/proc/{pid}/fd")
            if (target := _link(f"/proc/{pid}/fd/{name}")).startswith("socket:[")
        }
    except OSError:
        return None
    found = None
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        found = found or any(
            row[9] in inodes
            and row[3] in (_ESTABLISHED, _LISTENING)
            and port in (int(row[1].rpartition(":")[2], 16), int(row[2].rpartition(":")[2], 16))
            for row in rows
        )
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
