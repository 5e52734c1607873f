"""The SLURM_* variables of a batch script and of the tasks of its steps, in one place. Pure.

They agree with flowlite's other variables: SLURM_PROCID is RANK, SLURM_LOCALID is LOCAL_RANK, SLURM_NTASKS is
WORLD_SIZE, SLURM_NODEID is NODE_RANK.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .hostlist import compress, repeated
from .layout import Task

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
"""Variables that every task of a step has and the script has not, since it is not a rank."""

_OF_THE_AGENTS = (
    *("SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_SRUN_COMM_"),
    *("SLURM_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_OPEN_MODE"),
    *("SLURM_TRES_PER_TASK", "SRUN_DEBUG"),
)
"""Beginnings of the names by which Slurm describes the agents' step, one task per node with all of its cores. In the
script they would speak of the script's own tasks, and Slurm's `srun` takes them for options: the order of its tasks,
for example."""
_OF_MEMORY = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")
"""Slurm's `srun` refuses to start if more than one of them is set."""


def job_number(task: str) -> str:
    """Returns a number for a task as SLURM_JOB_ID, since scripts calculate with it."""
    digest = hashlib.sha256(task.encode()).digest()
    return str(1_000_000 + int.from_bytes(digest[:4], "big") % 9_000_000)


def node_names(addresses: Sequence[str]) -> list[str]:
    """Returns the nodes' names in a job: their addresses, since names do not resolve between nodes.

    Nodes that share this machine get different addresses of its loopback interface, which all lead to it.
    """
    if len(set(addresses)) == len(addresses):
        return list(addresses)
    return [f"127.0.{(rank + 1) >> 8}.{(rank + 1) & 255}" for rank in range(len(addresses))]


def of_script(
    batch: Mapping[str, Any],
    *,
    job: str,
    names: Sequence[str],
    counts: Sequence[int],
    directory: str,
    cores: int,
    attempt: int,
    pid: int,
) -> dict[str, str]:
    """Returns the variables of the script.

    Args:
        batch: The parsed script ("variables": those that only the script's own options determine).
        job: Its number.
        names: The nodes' names, by rank.
        counts: Tasks on each node.
        directory: Where it starts.
        cores: Of this node.
    """
    hosts, tasks = compress(names), str(sum(counts))
    found = {
        "ENVIRONMENT": "BATCH",
        "SLURM_CLUSTER_NAME": "flowlite",
        "SLURM_CPUS_ON_NODE": str(cores),
        "SLURM_JOBID": job,
        "SLURM_JOB_ID": job,
        "SLURM_JOB_CPUS_PER_NODE": repeated([cores] * len(names)),
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": str(len(names)),
        "SLURM_NNODES": str(len(names)),
        "SLURM_NODELIST": hosts,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS": tasks,
        "SLURM_SUBMIT_DIR": directory,
        "SLURM_TASKS_PER_NODE": repeated(counts),
        **of_place(0, 0, 0, [0], names[0], pid),
    }
    if attempt > 1:
        found["SLURM_RESTART_COUNT"] = str(attempt - 1)
    return {**found, **batch.get("variables", {})}


def of_task(
    task: Task,
    tasks: Sequence[Task],
    *,
    step: int,
    names: Sequence[str],
    pid: int,
    per_node: int | None,
) -> dict[str, str]:
    """Returns the variables of one task of a step, beyond those that `srun` passes on.

    Args:
        tasks: All of the step.
        names: The names of the gang's nodes.
        per_node: `--ntasks-per-node` of the step, None if it was not given.
    """
    nodes = sorted({(each.step_node, each.node) for each in tasks})
    counts = [sum(each.step_node == number for each in tasks) for number, _ in nodes]
    hosts = compress(names[node] for _, node in nodes)
    beside = [each.id for each in tasks if each.step_node == task.step_node]
    found = {
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_NPROCS": str(len(tasks)),
        "SLURM_NTASKS": str(len(tasks)),
        "SLURM_STEPID": str(step),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_NUM_NODES": str(len(nodes)),
        "SLURM_STEP_NUM_TASKS": str(len(tasks)),
        "SLURM_STEP_TASKS_PER_NODE": repeated(counts),
        "SLURM_TASKS_PER_NODE": repeated(counts),
        **of_place(task.id, task.local, task.step_node, beside, names[task.node], pid),
        "RANK": str(task.id),
        "LOCAL_RANK": str(task.local),
        "WORLD_SIZE": str(len(tasks)),
        "LOCAL_WORLD_SIZE": str(len(beside)),
        "NODE_RANK": str(task.step_node),
        "GROUP_RANK": str(task.step_node),
    }
    if per_node is not None:
        found["SLURM_NTASKS_PER_NODE"] = str(per_node)
    return found


def of_place(
    task: int, local: int, node: int, beside: Sequence[int], name: str, pid: int
) -> dict[str, str]:
    """Returns the variables for a process's position in the job."""
    return {
        "SLURMD_NODENAME": name,
        "SLURM_GTIDS": ",".join(map(str, beside)),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(task),
        "SLURM_TASK_PID": str(pid),
    }


def of_cluster(
    inherited: Mapping[str, str], batch: Mapping[str, Any], given: Mapping[str, str]
) -> dict[str, str]:
    """Returns what a script gets of the environment that Slurm has given to the agents' step.

    Args:
        batch: The parsed script: what its own options say about its tasks stands.
        given: Variables that the user has set for the task.
    """
    asked = batch.get("variables", {})
    dropped = set(_OF_MEMORY) if set(_OF_MEMORY) & asked.keys() else set()
    return {
        name: value
        for name, value in inherited.items()
        if name in given or not (name.startswith(_OF_THE_AGENTS) or name in dropped)
    }


def changes(
    before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Returns the variables that a script has set, and those that it has removed, before it called `srun`."""
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return changed, [name for name in before if name not in after]


def of_process(
    own: Mapping[str, str],
    changed: Mapping[str, str],
    removed: Sequence[str],
    place: Mapping[str, str],
    moved: Mapping[str, str],
) -> dict[str, str]:
    """Returns the whole environment of a task on its node.

    Args:
        own: The script's environment, if it had started on this node.
        changed, removed: The script's changes to its environment.
        place: `of_task`.
        moved: Directories of the script's node, each with its counterpart here.
    """
    found = {name: value for name, value in own.items() if name not in set(removed)}
    for name, value in changed.items():
        for there, here in moved.items():
            value = value.replace(there, here)
        found[name] = value
    return {**found, **place}
