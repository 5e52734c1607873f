"""Looks into the configuration that a command gives to `accelerate launch`, where it is a file of the project.

A configuration is written for one machine, by `accelerate config` with the rank 0. The same file on all nodes makes
each of them the first, or the only one. In manual mode a configuration of one machine is right all the same if it makes
Accelerate start torchrun, which reads the other nodes from the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowlite.spec.launchers import Launcher, options_in

_GANG = (
    "--num_machines $FLOW_NUM_NODES --machine_rank $FLOW_NODE_RANK --main_process_ip $FLOW_MAIN_IP "
    "--main_process_port $MASTER_PORT"
)
_WRITTEN = "--config_file $FLOW_ACCELERATE_CONFIG"
# With one of these options, the kind of training that the file names does not count.
_KINDS = ("multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "mpirun_hostfile")
_LARGEST = 1 << 20


def config_problem(launcher: Launcher | None, directory: Path, nodes: int) -> str:
    """What is wrong with the configuration on several nodes, and what to write; "" if nothing is known to be.

    Args:
        launcher: That is started once on each node.
        directory: In which it is started.
        nodes: Of the gang.
    """
    if launcher is None or launcher.program != "accelerate launch" or nodes == 1:
        return ""
    given = options_in(launcher.arguments)
    name = given.get("config_file", "")
    values = _read(directory / name) if name and not name.startswith("/") else {}
    if not values:
        return ""
    machines = _number(given.get("num_machines", values.get("num_machines", 1)))
    if machines > 1 and not given.keys() & {"machine_rank"}:
        return (
            f"{name} gives all {nodes} nodes the same machine_rank, {values.get('machine_rank', 0)}: they would wait "
            f"for the others in vain; add {_GANG}, or write {_WRITTEN}"
        )
    # YAML takes NO for a truth value.
    alone = str(values.get("distributed_type")).upper() in ("NO", "FALSE")
    if alone and not given.keys() & set(_KINDS):
        return (
            f"{name} has distributed_type NO, with which Accelerate starts one process that knows of no other: each of "
            f"{nodes} nodes would train a separate model; write {_WRITTEN}"
        )
    return ""


def _read(file: Path) -> Mapping[str, Any]:
    """The values of a configuration; nothing if it cannot be read."""
    import yaml

    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return {}
        # JSON is read as YAML, too.
        values = yaml.safe_load(file.read_bytes())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        # A variable, which is not known here.
        return 1
