"""The environment of a worker: one table, one pure function.

The sources of a variable, from weakest to strongest: the node's own environment (without the variables of other
launchers), flowlite's defaults, the values that flowlite gives, the user's values (`environment=` and secrets), and the
fixed variables, which cannot be overridden because ranks would contradict each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..config import distributed_modes
from ..config.ranks import global_rank
from .launcher_files import ACCELERATE_CONFIG, HOSTFILE

FIXED = "fixed"
"""Cannot be overridden: processes would disagree about their ranks."""
GIVEN = "given"
"""Replaces an inherited value; the user's `environment=` wins."""
DEFAULT = "default"
"""Set only if neither the user nor the node has set it."""


class WorkerPlace(NamedTuple):
    """The position of one worker in its gang: the input of its environment, besides the inherited variables.

    `processes_per_node` is how many processes share a node; in manual mode the user's launcher starts them.
    `size` is the fewest and the most nodes that an attempt may have, or None if all have as many.
    `interface` is the network interface that reaches the leader, or None if it is not known. `only_cpu` says that this
    node has no accelerator that a trainer could use. `launcher_files` is the directory of the files that users'
    launchers read (`launcher_files.py`), or None if there are none.
    """

    task: str
    name: str
    attempt: int
    mode: str
    node_rank: int
    local_rank: int
    processes_per_node: int
    addresses: Sequence[str]
    master_addr: str
    master_port: int
    interface: str | None = None
    cores: int = 1
    visible_gpus: str | None = None
    path: str | None = None
    checkpoint: str | None = None
    stop_file: str | None = None
    only_cpu: bool = False
    launcher_files: str | None = None
    provider: str | None = None
    size: Sequence[int] | None = None

    @property
    def rank(self) -> int:
        return global_rank(self.node_rank, self.processes_per_node, self.local_rank)

    @property
    def fewest_nodes(self) -> int:
        return self.size[0] if self.size is not None else len(self.addresses)

    @property
    def most_nodes(self) -> int:
        return self.size[1] if self.size is not None else len(self.addresses)

    @property
    def world_size(self) -> int:
        return len(self.addresses) * self.processes_per_node

    @property
    def trains_on_cpu(self) -> str | None:
        """Returns "true" if the processes of a gang have to find each other without an accelerator, else None."""
        return "true" if self.only_cpu and self.world_size > 1 else None

    @property
    def launched_processes(self) -> int | None:
        """Returns how many processes a launcher is to start here.

        None for one, which also stands for "not said": trainers then count the GPUs that they see.
        """
        return self.processes_per_node if self.processes_per_node > 1 else None

    def launcher_file(self, name: str) -> str | None:
        """Returns the path of one of the files for launchers."""
        return None if self.launcher_files is None else f"{self.launcher_files}/{name}"

    @property
    def threads(self) -> int:
        """Returns the cores for each process of this machine, which several nodes of a gang may share."""
        nodes_here = list(self.addresses).count(self.addresses[self.node_rank])
        return max(1, self.cores // (nodes_here * self.processes_per_node))


class Variable(NamedTuple):
    """A row of the table. `modes` are the distributed modes in which it is set; in others it is absent."""

    name: str
    strength: str
    value: Callable[[WorkerPlace], object]
    meaning: str
    modes: tuple[str, ...] = distributed_modes.ALL


_AUTO = ("auto",)
_MANUAL = ("manual",)

TABLE: tuple[Variable, ...] = (
    Variable("FLOW_NODE_RANK", FIXED, lambda s: s.node_rank, "this node's rank; 0 is the leader"),
    Variable("FLOW_NUM_NODES", FIXED, lambda s: len(s.addresses), "how many nodes the gang has"),
    Variable(
        "FLOW_NUM_NODES_MIN",
        FIXED,
        lambda s: s.fewest_nodes,
        "the fewest nodes that an attempt may have; as FLOW_NUM_NODES unless the gang shrinks and grows",
    ),
    Variable(
        "FLOW_NUM_NODES_MAX",
        FIXED,
        lambda s: s.most_nodes,
        "the most nodes that an attempt may have",
    ),
    Variable("FLOW_MAIN_IP", GIVEN, lambda s: s.master_addr, "private address of the leader"),
    Variable("FLOW_TASK_ID", FIXED, lambda s: s.task, "the task's id"),
    Variable("FLOW_TASK_NAME", GIVEN, lambda s: s.name, "the task's name"),
    Variable(
        "FLOW_NODE_IPS", GIVEN, lambda s: ",".join(s.addresses), "addresses of all nodes, by rank"
    ),
    Variable("FLOW_ATTEMPT", FIXED, lambda s: s.attempt, "1 at first, one more at every restart"),
    Variable(
        "FLOW_RESTART_COUNT", FIXED, lambda s: s.attempt - 1, "attempts before this one; 0 at first"
    ),
    Variable(
        "FLOW_PROVIDER",
        GIVEN,
        lambda s: s.provider,
        "where this attempt runs, such as `aws` or `slurm`",
    ),
    Variable(
        "FLOW_CHECKPOINT_DIR",
        GIVEN,
        lambda s: s.checkpoint,
        "directory whose files are copied away, where the task has `checkpoint=`",
    ),
    Variable("FLOW_STOP_FILE", FIXED, lambda s: s.stop_file, "what `should_stop()` reads"),
    Variable("RANK", FIXED, lambda s: s.rank, "node rank x processes per node + local rank", _AUTO),
    Variable("LOCAL_RANK", FIXED, lambda s: s.local_rank, "the rank on this node", _AUTO),
    Variable("WORLD_SIZE", FIXED, lambda s: s.world_size, "workers of the whole gang", _AUTO),
    Variable(
        "LOCAL_WORLD_SIZE", FIXED, lambda s: s.processes_per_node, "workers on this node", _AUTO
    ),
    Variable("NODE_RANK", FIXED, lambda s: s.node_rank, "as FLOW_NODE_RANK"),
    Variable("GROUP_RANK", FIXED, lambda s: s.node_rank, "as FLOW_NODE_RANK", _AUTO),
    Variable("MASTER_ADDR", GIVEN, lambda s: s.master_addr, "private address of the leader"),
    Variable(
        "MASTER_PORT", GIVEN, lambda s: s.master_port, "29500, or another port proved to be free"
    ),
    Variable(
        "NCCL_SOCKET_IFNAME", DEFAULT, lambda s: s.interface, "interface that reaches the leader"
    ),
    Variable(
        "GLOO_SOCKET_IFNAME", DEFAULT, lambda s: s.interface, "interface that reaches the leader"
    ),
    Variable("OMP_NUM_THREADS", DEFAULT, lambda s: s.threads, "cores / local processes"),
    Variable(
        "PYTHONUNBUFFERED", DEFAULT, lambda s: 1, "what a worker prints is a log line at once"
    ),
    Variable(
        "ACCELERATE_USE_CPU",
        DEFAULT,
        lambda s: s.trains_on_cpu,
        "`true` in a gang without accelerators, where each process would else train alone under Accelerate",
    ),
    Variable(
        "CUDA_VISIBLE_DEVICES",
        GIVEN,
        lambda s: s.visible_gpus,
        "only where a node got some of its machine's GPUs; else untouched, LOCAL_RANK is the index",
    ),
    Variable("PATH", GIVEN, lambda s: s.path, "with the directory of the task's Python in front"),
    Variable("PET_NNODES", FIXED, lambda s: len(s.addresses), "for a bare torchrun", _MANUAL),
    Variable("PET_NODE_RANK", FIXED, lambda s: s.node_rank, "for a bare torchrun", _MANUAL),
    Variable(
        "PET_NPROC_PER_NODE", GIVEN, lambda s: s.processes_per_node, "for a bare torchrun", _MANUAL
    ),
    Variable("PET_MASTER_ADDR", GIVEN, lambda s: s.master_addr, "for a bare torchrun", _MANUAL),
    Variable("PET_MASTER_PORT", GIVEN, lambda s: s.master_port, "for a bare torchrun", _MANUAL),
    Variable(
        "NNODES",
        GIVEN,
        lambda s: len(s.addresses),
        "nodes of the gang, for scripts and trainers that start torchrun with it",
        _MANUAL,
    ),
    Variable(
        "NPROC_PER_NODE",
        GIVEN,
        lambda s: s.launched_processes,
        "processes that the launcher is to start on each node, if several; for the same",
        _MANUAL,
    ),
    Variable(
        "FLOW_HOSTFILE",
        GIVEN,
        lambda s: s.launcher_file(HOSTFILE),
        "file with a line `ADDRESS slots=N` for each node, by rank",
        _MANUAL,
    ),
    Variable(
        "FLOW_ACCELERATE_CONFIG",
        GIVEN,
        lambda s: s.launcher_file(ACCELERATE_CONFIG),
        "file for `accelerate launch --config_file`",
        _MANUAL,
    ),
)

FOREIGN_PREFIXES: tuple[str, ...] = (
    "PMI_",
    "PMI2_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_",
    "OMPI_MCA_ess_",
    "MPI_LOCAL",
    "MV2_",
    "JSM_NAMESPACE_",
    "TORCHELASTIC_",
    "PET_",
    "ROLE_",
    "HOROVOD_GLOO_RENDEZVOUS_",
    "SLURM_STEP_",
)
"""Variables of other launchers. Trainers read them in different orders, and some then silently train alone."""

FOREIGN_NAMES: frozenset[str] = frozenset(
    {
        "CROSS_RANK",
        "CROSS_SIZE",
        "FLOW_GANG",
        "FORK_LAUNCHED",
        "GROUP_WORLD_SIZE",
        "HOROVOD_CONTROLLER",
        "HOROVOD_CPU_OPERATIONS",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_ELASTIC",
        "HOROVOD_HOSTNAME",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "LOCAL_SIZE",
        "OMPI_APP_CTX_NUM_PROCS",
        "OMPI_FIRST_RANKS",
        "OMPI_MCA_orte_hnp_uri",
        "OMPI_MCA_orte_local_daemon_uri",
        "OMPI_NUM_APP_CTX",
        "SLURM_GTIDS",
        "SLURM_LOCALID",
        "SLURM_MPI_TYPE",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_STEPID",
        "SLURM_TASKS_PER_NODE",
        "SLURM_TASK_PID",
    }
)
"""The same, by name. Slurm's variables of the allocation are kept: they contradict nothing, and `srun` needs them.
Those of the step are dropped: MPI takes a process that has them for a task of `srun`, and ends it. SLURM_MPI_TYPE is
one of them, the cluster's MpiDefault, and to the `srun` of a batch script would mean that this step needs that MPI."""

_SIZE_OF_A_TERMINAL = frozenset({"COLUMNS", "LINES"})
"""An interactive Python exports them for its children (readline sets them). The output of a worker goes to a file."""

_BACKENDS_OF_KERNELS = ("module://matplotlib_inline", "module://ipykernel")
"""MPLBACKEND as a notebook's kernel exports it. Without the module of that name, matplotlib cannot even be imported."""

_COLOURS_OF_KERNELS = {"FORCE_COLOR": "1", "CLICOLOR": "1", "CLICOLOR_FORCE": "1"}
"""What a notebook's kernel exports, together with the TERM below, so that a cell shows colours of the programs that it
starts. In a worker, whose output goes to a file, progress bars of rich would take that for a terminal, and be drawn
there as new lines, ten times a second."""
_TERM_OF_KERNELS = "xterm-color"

_OURS = frozenset(row.name for row in TABLE if row.strength != DEFAULT) - {
    "CUDA_VISIBLE_DEVICES",
    "PATH",
}


def is_foreign(name: str) -> bool:
    """Whether a variable is a launcher's, an outer flowlite task's or a terminal's, and must not be inherited."""
    return (
        name in _OURS
        or name in FOREIGN_NAMES
        or name in _SIZE_OF_A_TERMINAL
        or name.startswith(FOREIGN_PREFIXES)
    )


def without_launchers(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without what launchers, a terminal and a notebook have put into it."""
    colours = {"TERM": _TERM_OF_KERNELS, **_COLOURS_OF_KERNELS}
    of_kernel = all(inherited.get(name) == value for name, value in colours.items())
    return {
        name: value
        for name, value in inherited.items()
        if not is_foreign(name)
        and not (name == "MPLBACKEND" and value.startswith(_BACKENDS_OF_KERNELS))
        and not (of_kernel and name in _COLOURS_OF_KERNELS)
    }


def worker_environment(
    inherited: Mapping[str, str],
    place: WorkerPlace,
    user: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns the whole environment of one worker.

    Args:
        inherited: The environment of the node's own processes.
        place: The worker's position in the gang.
        user: `environment=` of the task.
        secrets: The task's secrets by variable name.
    """
    wished = {**(user or {}), **(secrets or {})}
    for row in TABLE:
        if row.strength == FIXED:
            wished.pop(row.name, None)
    if "MASTER_ADDR" in wished:
        place = place._replace(master_addr=wished["MASTER_ADDR"])
    if wished.get("MASTER_PORT", "").isdigit():
        place = place._replace(master_port=int(wished["MASTER_PORT"]))
    environment = without_launchers(inherited)
    for row in TABLE:
        if place.mode not in row.modes:
            continue
        value = row.value(place)
        if value is None or (row.strength == DEFAULT and row.name in environment):
            continue
        environment[row.name] = str(value)
    environment.update(wished)
    return environment


OWNERS = ("FLOW_HOME", "FLOW_LEASE")
"""The variables of flowlite by which the processes of a home or a lease are found. A fork server keeps them, too."""

_BEFORE_GO = frozenset(
    {
        "FLOW_NODE_RANK",
        "FLOW_NUM_NODES",
        "FLOW_NUM_NODES_MIN",
        "FLOW_NUM_NODES_MAX",
        "FLOW_RESTART_COUNT",
        "FLOW_TASK_ID",
        "FLOW_TASK_NAME",
        "FLOW_ATTEMPT",
        "FLOW_PROVIDER",
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
        "CUDA_VISIBLE_DEVICES",
        "PATH",
    }
)
"""The variables of the table that are known before the rendezvous."""


def setup_environment(
    inherited: Mapping[str, str],
    place: WorkerPlace,
    user: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns the environment of a node's `setup=`: that of its workers, without ranks and addresses (known at GO)."""
    environment = worker_environment(inherited, place, user, secrets)
    given = {*(user or {}), *(secrets or {})}
    for row in TABLE:
        if row.name not in _BEFORE_GO and row.name not in given:
            environment.pop(row.name, None)
    return environment


def import_environment(python: str) -> dict[str, str]:
    """Returns the variables that a fork server needs before it imports anything, as its workers have them."""
    path = path_with(python, os.environ.get("PATH"))
    unbuffered = os.environ.get("PYTHONUNBUFFERED", "1")
    return {"PYTHONUNBUFFERED": unbuffered, **({} if path is None else {"PATH": path})}


def path_with(python: str, inherited: str | None) -> str | None:
    """Returns PATH with the directory of the task's Python first, so that `python` and `torchrun` are found there."""
    directory = python.rpartition("/")[0]
    if not directory:
        return inherited
    rest = [each for each in (inherited or "/usr/local/bin:/usr/bin:/bin").split(":") if each]
    return ":".join([directory, *(each for each in rest if each != directory)])
