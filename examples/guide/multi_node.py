"""From single-node to multi-node: two options more, and no change in the training code."""

import os

import torch
import torch.distributed as dist
from scale import scaled
from stubs import backend, create_model, device, device_ids, train_epoch
from torch.nn.parallel import DistributedDataParallel as DDP

from flowlite import FlowApp

app = FlowApp()


@app.function(
    gpu="h100:8",
    num_instances=4,  # flowlite coordinates 4 nodes
    distributed_mode="auto",  # every worker starts with its rank
    image="nvcr.io/nvidia/pytorch:23.10-py3",
)
def distributed_training():
    """32-GPU distributed training with automatic coordination."""
    # Set by flowlite:
    node_rank = int(os.environ["FLOW_NODE_RANK"])  # 0, 1, 2, 3
    num_nodes = int(os.environ["FLOW_NUM_NODES"])  # 4
    main_ip = os.environ["FLOW_MAIN_IP"]  # address of node 0

    # Also set: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    print(f"Node {node_rank}/{num_nodes} - Master: {main_ip}")

    # Standard PyTorch distributed setup, no changes needed
    dist.init_process_group(backend=backend())
    if device().type == "cuda":
        torch.cuda.set_device(device())

    # Your existing model training code
    model = create_model().to(device())
    model = DDP(model, device_ids=device_ids())

    for epoch in range(10):
        loss = train_epoch(model)
        if dist.get_rank() == 0:  # only rank 0 logs
            print(f"Epoch {epoch}: loss={loss:.4f}")

    return {"node": node_rank, "status": "complete"}


if __name__ == "__main__":
    # Launch 32 GPUs with automatic coordination
    result = scaled(distributed_training).remote()
    print(result)
