"""Trains a small Llama with Accelerate, its weights sharded over all processes by FSDP2.

    flow run examples/axolotl/fsdp2.py::train                     # run it again with --steps 16, and it goes on
    flow run -N 2 --processes-per-node 2 --manual -- \
        sh -c 'accelerate launch --config_file $FLOW_ACCELERATE_CONFIG examples/axolotl/fsdp2.py'
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flowlite import Checkpoint, FlowApp

app = FlowApp()
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/flowlite-checkpoints") + "/llama"
STEPS, BATCH, LENGTH, WORDS = 8, 4, 16, 64


@app.function(
    name="llama-fsdp2",
    num_instances=2,
    processes_per_node=2,
    # A checkpoint of sharded weights is read by the version of torch that has written it.
    dependencies=["torch>=2.13,<2.14", "accelerate>=1.15", "transformers>=5"],
    # Every node has shards of its own.
    checkpoint=Checkpoint("/flowlite-llama", CHECKPOINTS, every=2, nodes="all"),
)
def train(steps: int = STEPS) -> dict[str, Any]:
    """Trains up to a step, from the last checkpoint there is."""
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from transformers import LlamaConfig, LlamaForCausalLM

    gpu = torch.cuda.is_available()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if gpu else None
    accelerator = Accelerator(fsdp_plugin=plugin)
    rank, world = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(0)
    size: dict[str, int] = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": LENGTH,
    }
    model = LlamaForCausalLM(LlamaConfig(**size))
    model = accelerator.prepare(model) if gpu else sharded_on_cpu(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = load(model, optimizer)
    accelerator.print(f"{world} processes, {done} steps done before")

    for step in range(done + 1, steps + 1):
        # Sentences that count upwards: each rank has its own, and all of them are one batch.
        start = torch.arange(BATCH)[:, None] + BATCH * (rank + world * step)
        words = ((start + torch.arange(LENGTH)) % WORDS).to(accelerator.device)
        loss = model(input_ids=words, labels=words).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean").item()
        accelerator.print(f"step {step}: loss {mean:.4f}")
        if step % 4 == 0:
            save(model, optimizer, step)

    mine = sum(p.to_local().numel() for p in model.parameters())
    everybody: list[Any] = [None] * world
    dist.all_gather_object(everybody, (rank, mine))
    whole = sum(p.numel() for p in model.parameters())
    return {"world": world, "began": done, "loss": mean, "weights": whole, "shards": everybody}


def sharded_on_cpu(model: Any) -> Any:
    """What Accelerate does on GPUs; without any it would leave the plugin aside, and copy the model instead."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(model: Any, optimizer: Any, step: int) -> None:
    """Each process writes its shards, to the disk of its own node."""
    import torch

    if place := os.environ.get("FLOW_CHECKPOINT_DIR"):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        done = Path(place, str(step), f"rank_{os.environ['RANK']}.pt")
        done.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, done.with_suffix(".tmp"))
        done.with_suffix(".tmp").rename(done)


def load(model: Any, optimizer: Any) -> int:
    """The step of the last checkpoint, which the model has then; 0 where there is none."""
    import torch

    place = Path(os.environ.get("FLOW_CHECKPOINT_DIR", "/nowhere"))
    mine = f"rank_{os.environ['RANK']}.pt"
    step = max((int(path.parent.name) for path in place.glob(f"*/{mine}")), default=0)
    if step:
        state = torch.load(place / str(step) / mine, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return step


if __name__ == "__main__":
    print(train.local())
