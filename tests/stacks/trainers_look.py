"""What each trainer makes of the environment of a worker: one task that asks all of them.

    PYTHON trainers_look.py OUT.json PROVIDER NODES PROCESSES

PYTHON is that of the environment `trainers` (environments.py), and the nodes' workers must run in it, too.
In each worker every trainer is asked in a process of its own, forked, with the environment untouched, one after the
other, since all of them meet at MASTER_PORT. OUT.json gets a list by rank: {"rank", ..., "seen": {name: what the
trainer says: [rank, local rank, world size, sum over all ranks of 2**rank], or how it failed}}.

This file also runs where there are no tests: it imports nothing of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowlite import FlowApp

app = FlowApp("trainers")
SECONDS = 100.0


def plain_torch() -> list[int]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return [dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size()]


def _by_arguments(module: Any, **more: Any) -> list[int]:
    wanted = Namespace(horovod=False, no_set_device_rank=False, dist_url="env://", **more)
    module.init_distributed_device(wanted)
    return [wanted.rank, wanted.local_rank, wanted.world_size]


def open_clip() -> list[int]:
    import open_clip_train.distributed as module

    assert not module.is_using_horovod()
    assert module.is_using_distributed()
    return _by_arguments(module, dist_backend=None, device="cpu")


def open_clip_slurm() -> list[int]:
    os.environ.update(as_srun_would())
    return open_clip()


def open_flamingo() -> list[int]:
    module = _flamingo()
    assert not module.is_using_horovod()
    return _by_arguments(module, dist_backend="gloo")


def open_flamingo_slurm() -> list[int]:
    os.environ.update(as_srun_would())
    return open_flamingo()


def accelerator() -> list[int]:
    from accelerate import Accelerator

    state = Accelerator().state
    return [state.process_index, state.local_process_index, state.num_processes]


def accelerate_partial_state() -> list[int]:
    from accelerate import PartialState

    # On CPU it has to be told by its argument; it reads no variable for that.
    state = PartialState(cpu=True)
    return [state.process_index, state.local_process_index, state.num_processes]


def deepspeed() -> list[int]:
    import deepspeed
    import deepspeed.comm as dist

    # On CPU it would first compile an operator of its own, which takes a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_distributed()
    return [dist.get_rank(), dist.get_local_rank(), dist.get_world_size()]


def lightning_fabric() -> list[int]:
    from lightning.fabric import Fabric

    fabric = Fabric(**_shape())
    fabric.launch()
    assert fabric.node_rank == int(os.environ["NODE_RANK"])
    return [fabric.global_rank, fabric.local_rank, fabric.world_size]


def lightning_trainer() -> list[int]:
    from lightning.pytorch import Trainer

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(**_shape(), **quiet)
    trainer.strategy.setup_environment()
    assert trainer.node_rank == int(os.environ["NODE_RANK"])
    return [trainer.global_rank, trainer.local_rank, trainer.world_size]


def lightning_trainer_slurm() -> list[int]:
    os.environ.update(as_srun_would())
    return lightning_trainer()


def transformers_arguments() -> list[int]:
    from transformers import TrainingArguments

    seen = TrainingArguments(output_dir="out", report_to=[])
    return [seen.process_index, seen.local_process_index, seen.world_size]


ASKED = {
    each.__name__: each
    for each in (
        plain_torch,
        open_clip,
        open_clip_slurm,
        open_flamingo,
        open_flamingo_slurm,
        accelerator,
        accelerate_partial_state,
        deepspeed,
        lightning_fabric,
        lightning_trainer,
        lightning_trainer_slurm,
        transformers_arguments,
    )
}


def as_srun_would() -> dict[str, str]:
    """The variables of a task of Slurm that sits in this worker's place."""
    return {
        "SLURM_PROCID": os.environ["RANK"],
        "SLURM_LOCALID": os.environ["LOCAL_RANK"],
        "SLURM_NODEID": os.environ["NODE_RANK"],
        "SLURM_NTASKS": os.environ["WORLD_SIZE"],
        "SLURM_NTASKS_PER_NODE": os.environ["LOCAL_WORLD_SIZE"],
        "SLURM_NNODES": os.environ["FLOW_NUM_NODES"],
    }


def _shape() -> dict[str, Any]:
    return {
        "accelerator": "cpu",
        "strategy": "ddp",
        "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
        "num_nodes": int(os.environ["FLOW_NUM_NODES"]),
    }


def _flamingo() -> Any:
    """Its module alone: the package imports models that this has nothing to do with."""
    import importlib.util

    (place,) = importlib.util.find_spec("open_flamingo").submodule_search_locations
    found = importlib.util.spec_from_file_location("of", f"{place}/train/distributed.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def meet(port: int) -> list[int]:
    """Tell all ranks where the leader's store is: what the workers themselves wait for each other with."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    told = [port]
    dist.broadcast_object_list(told, src=0)
    dist.barrier()
    return told


def answer(name: str) -> list[int]:
    """What a trainer says, and proof that it has reached all ranks."""
    said = ASKED[name]()
    import torch
    import torch.distributed as dist

    total = torch.tensor([2.0 ** said[0]])
    dist.all_reduce(total)
    dist.barrier()
    return [*said, int(total.item())]


def in_a_child(what: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a process of its own, or how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = what(*arguments)
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, json.dumps(said).encode()[-60000:])
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], SECONDS)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    return json.loads(text) if text else f"no answer within {SECONDS:g} s"


@app.function
def look() -> dict[str, Any]:
    """What every trainer says, in one worker."""
    import accelerate  # noqa: F401
    import lightning.pytorch  # noqa: F401
    import open_clip_train.distributed  # noqa: F401
    import torch.distributed as dist
    import transformers  # noqa: F401

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    leader = os.environ["MASTER_ADDR"]
    own = dist.TCPStore(leader, 0, is_master=True) if rank == 0 else None
    (port,) = in_a_child(meet, own.port if own else 0)
    store = own or dist.TCPStore(leader, port)
    seen = {}
    for name in ASKED:
        # They all meet at one port, which must be free again.
        store.add(f"before {name}", 1)
        while int(store.add(f"before {name}", 0)) < world:
            time.sleep(0.005)
        seen[name] = in_a_child(answer, name)
    store.add("gone", 1)
    while own and int(own.add("gone", 0)) < world:
        time.sleep(0.005)
    return {
        "rank": rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "node": int(os.environ["FLOW_NODE_RANK"]),
        "host": os.uname().nodename,
        "world": world,
        "seen": seen,
    }


if __name__ == "__main__":
    place, provider, nodes, processes = sys.argv[1:]
    task = look.options(
        provider=provider, num_instances=int(nodes), processes_per_node=int(processes)
    ).spawn()
    Path(place).write_text(json.dumps(task.results(), indent=1))
