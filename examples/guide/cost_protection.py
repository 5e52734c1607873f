"""Cost protection: a tier, caps on price and time, and the cost while it runs."""

import torch.distributed as dist
from scale import scaled
from stubs import backend, create_model, device, train_epoch
from torch.nn.parallel import DistributedDataParallel as DDP

from flowlite import FlowApp

app = FlowApp()


@app.function(
    gpu="h100-80gb.sxm.8x",  # 8x H100 per node
    num_instances=8,  # 64 GPUs in all
    # Cost protection
    priority="med",  # balanced pricing tier
    max_price_per_hour=50.0,  # $50 per instance (in all: 8 × $50 = $400 an hour)
    max_run_time_hours=12,  # ends after 12 hours
    # Production image and environment
    image="nvcr.io/nvidia/pytorch:24.01-py3",
    environment={
        "NCCL_DEBUG": "WARN",
        "NCCL_TREE_THRESHOLD": "0",  # force ring algorithms for large clusters
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    },
)
def production_training(learning_rate: float = 1e-4, batch_size: int = 32):
    dist.init_process_group(backend=backend())
    world_size = dist.get_world_size()
    model = DDP(create_model().to(device()))
    epoch_loss = 0.0
    for _ in range(5):
        epoch_loss = train_epoch(model, learning_rate=learning_rate)
    return {"final_loss": epoch_loss, "epochs": 5, "gpus_used": world_size}


if __name__ == "__main__":
    # Monitor costs during training
    task = scaled(production_training).spawn(learning_rate=5e-5)
    print(f"Current cost: ${task.estimated_cost:.2f}")
    print(f"Cost cap: ${task.max_price_per_hour * task.num_instances:.2f}/hour")
    print(task.result())
