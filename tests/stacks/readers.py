"""Those parts of trainers that read the environment, without meeting anybody: run in the environment `trainers`.

Reads {name: environment} from standard input, prints {name: {reader: [rank, local rank, world size] or text}}.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def open_clip() -> Any:
    import open_clip_train.distributed as module

    return _of_mlfoundations(module)


def open_flamingo() -> Any:
    (place,) = importlib.util.find_spec("open_flamingo").submodule_search_locations
    found = importlib.util.spec_from_file_location("of", f"{place}/train/distributed.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return _of_mlfoundations(module)


def _of_mlfoundations(module: Any) -> Any:
    if module.is_using_horovod():
        return "takes itself to be under Horovod"
    if not module.is_using_distributed():
        return "trains alone"
    local, rank, world = module.world_info_from_env()
    return [rank, local, world]


def accelerate() -> Any:
    """As `Accelerator()` does where there is no GPU."""
    from accelerate.state import PartialState
    from accelerate.utils import get_cpu_distributed_information, parse_flag_from_env

    cpu = parse_flag_from_env("ACCELERATE_USE_CPU")
    _, kind = PartialState()._prepare_backend(cpu)
    if str(kind) != "DistributedType.MULTI_CPU":
        return "trains alone"
    found = get_cpu_distributed_information()
    return [found.rank, found.local_rank, found.world_size]


def lightning_trainer() -> Any:
    from lightning.pytorch.trainer.connectors import accelerator_connector as connector

    return _of_lightning(connector._AcceleratorConnector)


def lightning_fabric() -> Any:
    from lightning.fabric import connector

    return _of_lightning(connector._Connector)


def _of_lightning(connector: Any) -> Any:
    wanted = type("Wanted", (), {"_cluster_environment_flag": None})()
    found = connector._choose_and_init_cluster_environment(wanted)
    if not found.creates_processes_externally:
        return "starts processes of its own"
    # What a strategy tells one that does not know by itself.
    nodes, devices = int(os.environ["FLOW_NUM_NODES"]), int(os.environ["LOCAL_WORLD_SIZE"])
    found.set_world_size(nodes * devices)
    found.set_global_rank(found.node_rank() * devices + found.local_rank())
    return [found.global_rank(), found.local_rank(), found.world_size()]


def deepspeed() -> Any:
    wanted = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    if missing := [name for name in wanted if name not in os.environ]:
        return f"asks MPI: {missing}"
    if os.environ.get("LOCAL_SIZE") == os.environ["WORLD_SIZE"]:
        return "reduces through shared memory"
    return [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]


def torch() -> Any:
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        return "waits for a store of torchrun"
    return [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]


def horovod() -> Any:
    if believed := sorted(name for name in os.environ if name.startswith("HOROVOD_")):
        return f"believes {believed}"
    return torch()


READERS: tuple[Callable[[], Any], ...] = (
    torch,
    open_clip,
    open_flamingo,
    accelerate,
    deepspeed,
    lightning_fabric,
    lightning_trainer,
    horovod,
)


def ask(reader: Callable[[], Any], environment: dict[str, str]) -> Any:
    os.environ.clear()
    os.environ.update(environment)
    try:
        return reader()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for each in READERS:
        ask(each, dict(os.environ))  # imports, in the environment that there is
    asked = json.load(sys.stdin)
    found = {
        name: {reader.__name__: ask(reader, environment) for reader in READERS}
        for name, environment in asked.items()
    }
    print(json.dumps(found))
