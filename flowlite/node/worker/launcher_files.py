"""Files that launchers of users read, in manual mode: who the nodes are, in the forms that the launchers know.

    hostfile          ADDRESS slots=N      a line for each node, by rank: `deepspeed --hostfile`, `mpirun --hostfile`
    accelerate.yaml                        `accelerate launch --config_file`

They lie on every node; FLOW_HOSTFILE and FLOW_ACCELERATE_CONFIG say where.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HOSTFILE = "hostfile"
ACCELERATE_CONFIG = "accelerate.yaml"


def write(
    directory: Path, addresses: Sequence[str], slots: int, environment: Mapping[str, str]
) -> None:
    """Write them on one node.

    Args:
        directory: Where.
        addresses: Of all nodes, by rank.
        slots: Processes that share a node.
        environment: That of this node's worker.
    """
    texts = {
        HOSTFILE: hostfile(addresses, slots),
        ACCELERATE_CONFIG: accelerate_config(environment, slots),
    }
    for name, text in texts.items():
        partial = directory / f"{name}.part"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, directory / name)


def hostfile(addresses: Sequence[str], slots: int) -> str:
    """One line for each node, by rank."""
    return "".join(f"{each} slots={slots}\n" for each in apart(addresses))


def accelerate_config(environment: Mapping[str, str], slots: int) -> str:
    """All processes of all nodes, through torchrun's static rendezvous.

    Also where there is no GPU: Accelerate starts several processes on one machine only as MULTI_GPU, whatever they
    compute on.
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
        "mixed_precision": "'no'",
        "main_training_function": "main",
        "use_cpu": "false" if several else environment.get("ACCELERATE_USE_CPU", "false"),
        "debug": "false",
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def apart(addresses: Sequence[str]) -> Iterator[str]:
    """Addresses of which none comes twice: DeepSpeed refuses a file where one does.

    Only nodes that share this machine share an address, and all of 127.0.0.0/8 is this machine.
    """
    taken = set(addresses)
    seen: set[str] = set()
    spare = (each for n in range(2, 1 << 16) if (each := f"127.0.{n >> 8}.{n & 255}") not in taken)
    for address in addresses:
        if address in seen and address.startswith("127."):
            address = next(spare)
        seen.add(address)
        yield address
