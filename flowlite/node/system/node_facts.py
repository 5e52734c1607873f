"""The facts that a node reports when it joins. The nodes of a gang are compared by them before GO."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import processes

# Shared file systems may claim 2**64 bytes, and the leader takes no larger number than SQLite stores.
_MOST_BYTES = 2**63 - 1
NVIDIA, DEVICES = Path("/proc/driver/nvidia/gpus"), Path("/dev")
"""Where NVIDIA's driver lists its GPUs, by PCI address, and where the devices are."""
_AMD = Path("/sys/class/kfd/kfd/topology/nodes")
# Files of cgroup v1 with the limit of a group: cpu.cfs_quota_us and cpu.cfs_period_us.
_CFS = ("quota", "period")
# Device files of other accelerators that torch supports.
_OTHERS = ("kfd", "accel*", "hl[0-9]*", "davinci[0-9]*", "neuron*", "mthreads*", "cambricon*")


def facts(
    *,
    call: Mapping[str, Any],
    home: Path,
    address: str | None,
    visible_gpus: str | None,
    python: str | None = None,
) -> dict[str, Any]:
    """Returns the facts of this node, read now.

    Args:
        address: This node's address on the route to the leader.
        visible_gpus: The GPU indices of this node, if it shares a machine.
        python: The Python version of the workers, if it is not the agent's own.
    """
    version = python or sys.version.split()[0]
    return {
        "address": address,
        "hostname": os.uname().nodename,
        "python": version,
        "python_minor": ".".join(version.split(".")[:2]),
        "code": code_digest(call),
        "gpus": gpus(visible_gpus),
        "clock": time.time(),
        **_disk(home),
        "agent": agent_digest(),
        "cores": cores(),
    }


def _disk(directory: Path) -> dict[str, int]:
    """Returns the size of the disk of a directory, and how much is free; {} if that cannot be found out."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        # Such as one that was removed while the workers run. The node must be able to join again all the same.
        return {}
    return {
        "disk_free_bytes": min(disk.f_bavail * disk.f_frsize, _MOST_BYTES),
        "disk_total_bytes": min(disk.f_blocks * disk.f_frsize, _MOST_BYTES),
    }


def surroundings() -> dict[str, Any]:
    """Returns what NCCL and data loaders need besides GPUs: InfiniBand, shared memory, limit of locked memory."""
    import resource

    found: dict[str, Any] = {"infiniband": os.path.isdir("/sys/class/infiniband")}
    try:
        shared = os.statvfs("/dev/shm")
        found["shm_bytes"] = min(shared.f_blocks * shared.f_frsize, _MOST_BYTES)
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        found["memlock_bytes"] = None if limit == resource.RLIM_INFINITY else limit
    except (OSError, ValueError, AttributeError):
        pass
    return found


def code_digest(call: Mapping[str, Any]) -> str:
    """Returns one hash of everything that the workers will run."""
    import hashlib
    import json

    if call["kind"] == "command":
        parts = [json.dumps(call["argv"])]
    else:
        parts = [call["sha256"], *(source["sha256"] for source in call.get("source", ()))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


_agent_digest: list[str] = []


def note_digest(sha256: str) -> None:
    """Sets the hash of the archive that holds this package, if the caller knows it."""
    _agent_digest[:] = [sha256[:16]]


def agent_digest() -> str:
    """Returns a hash of the node package. Nodes with the same hash use the same protocol."""
    import hashlib

    if not _agent_digest:
        package = Path(__file__).parents[1]
        digest = hashlib.sha256()
        if package.is_dir():
            for each in sorted(package.rglob("*.py")):
                digest.update(each.read_bytes())
        else:
            digest.update(package.parent.read_bytes())
        _agent_digest.append(digest.hexdigest()[:16])
    return _agent_digest[0]


def cores(root: str = "/") -> int:
    """Returns the processor cores that this process may use, at least 1, within the limits of its control groups.

    Args:
        root: The directory that contains `proc` and `sys`.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = os.cpu_count() or 1
    for quota, period in _cpu_limits(Path(root)):
        allowed = min(allowed, -(-quota // period))
    return max(1, allowed)


def _cpu_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yields the quotas of this process and of the control groups above, with their periods, of cgroup v1 and v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    top = root / "sys/fs/cgroup"
    for line in lines:
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # In a container, the path may be that of the machine. The group of the container itself is then at the top.
        for length in range(len(parts), -1, -1):
            group = Path(top / ("cpu" if kinds else ""), *parts[:length])
            try:
                if kinds:
                    words = [(group / f"cpu.cfs_{each}_us").read_text("ascii") for each in _CFS]
                else:
                    words = (group / "cpu.max").read_text("ascii").split()
                quota, period = (int(word) for word in words)
            except (OSError, ValueError):
                # There is no such group or no limit ("max").
                continue
            if quota > 0 and period > 0:
                yield quota, period


def gpus(visible: str | None = None) -> dict[str, Any]:
    """Returns the number and kind of this node's GPUs; {"count": 0, "kind": None} without any.

    This reads the drivers' files in /proc and /sys, which starts no process and opens no device. Only where those of
    NVIDIA are missing (WSL, gVisor), `nvidia-smi` is asked. `visible` lists the indices that belong to this node (""
    for none).
    """
    try:
        listed = listed_gpus()
    except OSError:
        kinds = ask_nvidia_smi("name").splitlines() or _amd_kinds()
    else:
        # The devices may not exist before the first program uses them.
        all_of_them = not any(each.device.exists() for each in listed)
        kinds = [each.kind for each in listed if each.usable or all_of_them]
    count = len(kinds)
    if visible is not None:
        count = min(count, len([each for each in visible.split(",") if each.strip()]))
    return {"count": count, "kind": kinds[0] if count else None}


def _amd_kinds() -> list[str]:
    """The kinds of the AMD GPUs that this process may use, each by the driver's name for it."""
    found = []
    for node in _AMD.glob("[0-9]*"):
        try:
            lines = (line.split() for line in (node / "properties").read_text("ascii").splitlines())
            told = {line[0]: line[1] for line in lines if len(line) == 2}
            kind = (node / "name").read_text("utf-8", "replace").strip()
        except (OSError, ValueError):
            # Of a GPU that belongs to others. The driver asks the device control group, too.
            continue
        device = DEVICES / "dri" / f"renderD{told.get('drm_render_minor')}"
        if told.get("simd_count", "0") != "0" and _may_use(device):
            found.append(f"AMD {kind or told.get('gfx_target_version', 'GPU')}")
    return sorted(found)


def _may_use(device: Path) -> bool:
    # Also for root, the kernel asks the device control group.
    return os.access(device, os.R_OK | os.W_OK)


class ListedGpu(NamedTuple):
    """A GPU that NVIDIA's driver lists: its PCI address, what it is ("NVIDIA H100 80GB HBM3"), and its device."""

    bus: str
    kind: str
    device: Path

    @property
    def usable(self) -> bool:
        """Whether this process may use it. A job of Slurm or a container may have some of a machine's GPUs only."""
        return _may_use(self.device)


def listed_gpus() -> list[ListedGpu]:
    """Returns NVIDIA's GPUs of the machine, also those that this process may not use. Raises OSError without any."""
    found = []
    for number, card in enumerate(sorted(NVIDIA.iterdir())):
        try:
            text = (card / "information").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        lines = (line.partition(":") for line in text.splitlines())
        told = {name.strip(): value.strip() for name, _, value in lines}
        device = DEVICES / f"nvidia{told.get('Device Minor', number)}"
        found.append(ListedGpu(card.name, told.get("Model", ""), device))
    return found


def ask_nvidia_smi(fields: str, seconds: float = 20.0) -> str:
    """Returns a line of these fields for each GPU, without units; "" if `nvidia-smi` is missing, late, or fails."""
    import subprocess
    from shutil import which

    tool = which("nvidia-smi")
    if tool is None:
        return ""
    try:
        done = processes.run_within(
            seconds, [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def lacks_memory(used: int, total: int) -> bool:
    """Whether so much of a GPU's memory is in use, before the workers start, that they would lack it."""
    return used > max(2**30, 0.05 * total)


def only_cpu(visible: str | None = None) -> bool:
    """Whether this node has no accelerator that a trainer could use; `visible` as for `gpus`."""
    if gpus(visible)["count"]:
        return False
    return not any(any(Path("/dev").glob(each)) for each in _OTHERS)


def wrong_gpus(expected: Mapping[str, Any] | None, found: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with this node's GPUs, or None."""
    if not expected or not expected.get("count"):
        return None
    if found["count"] < int(expected["count"]):
        return (
            f"{expected['count']} GPUs were asked for and {found['count']} are here. Look at "
            "`nvidia-smi` on the node; replace the node, or ask for fewer"
        )
    return None
