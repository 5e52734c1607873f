"""What of a task can still be found on a Slurm, by means that are none of ours."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowlite.testing.hosts import Host
from flowlite.testing.slurm import SlurmCluster


def left_of(slurm: SlurmCluster, task_id: str, *, files: bool = True) -> list[str]:
    """Jobs, processes and files that bear the task's name, in words."""
    found = [f"job {line}" for line in jobs_of(slurm, task_id)]
    for host in slurm.hosts:
        if not host.alive:
            continue
        found += [f"{host.name}: {said}" for said in processes_of(host, task_id)]
        if files:
            found += [f"{host.name}: {path}" for path in _files(host, task_id)]
    found += [f"shared: {path}" for path in slurm.shared.rglob(f"*{task_id}*")] if files else []
    return found


def jobs_of(slurm: SlurmCluster, task_id: str) -> list[str]:
    """Jobs of the task that are not over, each with its state."""
    lines = slurm.run("squeue", "--all", "-h", "-o", "%A %T %k").splitlines()
    return [line for line in lines if task_id in line]


def processes_of(host: Host, task_id: str) -> list[str]:
    """Processes of a host that name the task."""
    found = []
    for pid in host.pids():
        with suppress(OSError):
            said = Path(f"/proc/{pid}/cmdline").read_bytes() + b" "
            said += Path(f"/proc/{pid}/environ").read_bytes()
            if task_id.encode() in said:
                found.append(said.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def _files(host: Host, task_id: str) -> list[str]:
    places = ["/tmp", "/var/tmp", "/root", "/home", "/dev/shm", "/run"]
    skip = ["-path", "*/flowlite-hosts-*", "-prune", "-o"]
    done = host.exec(["find", *places, "-xdev", *skip, "-name", f"*{task_id}*", "-print"])
    return done.stdout.splitlines()
