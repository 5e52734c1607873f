"""A gang under `mpirun`: the settings of the MPI launchers, and the command. Pure but for a look at the network.

Open MPI 4 and 5, MPICH and Intel MPI start their daemons through a remote shell; each has a variable that names it. All
of them get our shim (`ssh_shim.py`), a hostfile, and no other way to find nodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..config.launcher_programs import starts_ranks
from ..system import addresses
from .context import GangContext

RANK_PROGRAM = "flow-rank"
"""The program for one process of the gang (`mpi_rank.py`), in the directory of the shims on every node."""
STORE = "--horovod-store"
_THROUGH = ("/bin/sh", "-c", f'exec "$FLOW_GANG/bin/{RANK_PROGRAM}" "$@"', RANK_PROGRAM)


def machinefile(place: GangContext) -> str:
    """Returns `ADDRESS:N` for each node, as MPICH and Intel MPI read it."""
    slots = place.config.processes_per_node
    return "".join(f"{host}:{slots}\n" for host in place.hosts)


def command(place: GangContext, store: str = "") -> list[str] | None:
    """Returns the command of node 0's worker; None if the task's own command starts the ranks.

    Args:
        store: Address of Horovod's store (`horovod.py`); "" if it is not needed.
    """
    call = place.config.call
    if call["kind"] == "command" and starts_ranks(call["argv"]):
        return None
    processes = place.config.num_nodes * place.config.processes_per_node
    words = ["mpirun", "-n", str(processes), *_THROUGH, *((STORE, store) if store else ())]
    return [*words, *call["argv"]] if call["kind"] == "command" else words


def environment(place: GangContext, directory: str) -> dict[str, str]:
    """Returns variables for the MPI launchers. The user's `environment=` overrides them.

    Args:
        directory: Of the hostfile and the shims.
    """
    shell, hosts, machines = (
        f"{directory}/{name}" for name in ("bin/ssh", "hostfile", "machinefile")
    )
    found = {
        "FLOW_HOSTFILE": hosts,
        # Open MPI 4
        "OMPI_MCA_plm": "rsh",
        # By name: the daemons inherit this variable and look for the program on their own nodes.
        "OMPI_MCA_plm_rsh_agent": "ssh",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_ras": "^slurm,tm,alps,gridengine,loadleveler",
        "OMPI_MCA_orte_default_hostfile": hosts,
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_rmaps_base_mapping_policy": "slot",
        # Open MPI 5, and other launchers based on PRRTE
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": "ssh",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_ras": "^slurm,lsf,pbs",
        "PRTE_MCA_prte_default_hostfile": hosts,
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": "slot",
        # MPICH, and Intel MPI
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": shell,
        "HYDRA_HOST_FILE": machines,
        "HYDRA_RMK": "user",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": shell,
        "I_MPI_HYDRA_HOST_FILE": machines,
    }
    if os.geteuid() == 0:
        # Both refuse to run as root, which may be the only user in a container or on a rented machine.
        for name in ("OMPI", "PRTE"):
            found |= {f"{name}_ALLOW_RUN_AS_ROOT": "1", f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if (network := addresses.network_of(place.addresses)) is not None:
        # Otherwise Open MPI tries every interface, including those of containers, and waits for unreachable ones.
        found |= {
            "OMPI_MCA_btl_tcp_if_include": network,
            "OMPI_MCA_oob_tcp_if_include": network,
            "PRTE_MCA_oob_tcp_if_include": network,
        }
    if place.on_one_machine:
        # Open MPI names its shared memory by machine and local rank, which two nodes on one machine would share.
        found["OMPI_MCA_btl"] = "self,tcp"
    return {name: value for name, value in found.items() if name not in place.config.environment}


def ranks(environment: Mapping[str, str]) -> tuple[int, int, int, int] | None:
    """Returns rank, size, local rank and local size of a process under any of these launchers; None under none."""
    for names in (
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        if all(environment.get(name, "").isdigit() for name in names):
            rank, size, local, here = (int(environment[name]) for name in names)
            return rank, size, local, here
    return None
