"""Files for users' launchers in manual mode: the nodes of the gang, in the formats that the launchers read.

    hostfile          ADDRESS slots=N      a line for each node, by rank: `deepspeed --hostfile`, `mpirun --hostfile`
    accelerate.yaml                        `accelerate launch --config_file`

Every node has these files. FLOW_HOSTFILE and FLOW_ACCELERATE_CONFIG are their paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..system import atomic_files

HOSTFILE = "hostfile"
ACCELERATE_CONFIG = "accelerate.yaml"


def write(
    directory: Path, addresses: Sequence[str], slots: int, environment: Mapping[str, str]
) -> None:
    """Writes the files on one node.

    Args:
        directory: The directory to write to.
        addresses: The addresses of all nodes, by rank.
        slots: The number of processes that share a node.
        environment: The environment of this node's worker.
    """
    texts = {
        HOSTFILE: hostfile(addresses, slots),
        ACCELERATE_CONFIG: accelerate_config(environment, slots),
    }
    for name, text in texts.items():
        atomic_files.place(text.encode(), str(directory / name), 0o600)


def hostfile(addresses: Sequence[str], slots: int) -> str:
    """Returns the hostfile, with one line for each node, by rank."""
    return "".join(f"{each} slots={slots}\n" for each in apart(addresses))


def accelerate_config(environment: Mapping[str, str], slots: int) -> str:
    """Returns an Accelerate configuration for all processes of all nodes, with torchrun's static rendezvous.

    It uses MULTI_GPU even without GPUs: only then does Accelerate start several processes on one machine, regardless
    of the device that they compute on.
    """
    nodes = int(environment["FLOW_NUM_NODES"])
    several = nodes * slots > 1
    values = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if several else "'NO'",
        "num_machines": nodes,
        "machine_rank": environment["FLOW_NODE_RANK"],
        "num_processes": nodes * slots,
        "main_process_ip": f"'{environment['MASTER_ADDR']}'",
        "main_process_port": environment["MASTER_PORT"],
        "rdzv_backend": "static",
        "same_network": "true",
        "gpu_ids": "all",
        # Accelerate sets the variable from the file, so that the user's value would be lost.
        "mixed_precision": f"'{environment.get('ACCELERATE_MIXED_PRECISION', 'no')}'",
        "main_training_function": "main",
        "use_cpu": "false" if several else environment.get("ACCELERATE_USE_CPU", "false"),
        "debug": "false",
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def apart(addresses: Sequence[str]) -> Iterator[str]:
    """Yields the addresses, with duplicates replaced, since DeepSpeed refuses a hostfile with duplicates.

    Only nodes on this machine share an address, and all of 127.0.0.0/8 is this machine.
    """
    taken = set(addresses)
    seen: set[str] = set()
    spare = (each for n in range(2, 1 << 16) if (each := f"127.0.{n >> 8}.{n & 255}") not in taken)
    for address in addresses:
        if address in seen and address.startswith("127."):
            address = next(spare)
        seen.add(address)
        yield address
