"""Shared storage: file volumes that all nodes read and write, with coordinated checkpoints."""

import torch.distributed as dist
from scale import scaled
from stubs import backend, create_model, device, load_dataset_from_path, train_epoch
from torch.nn.parallel import DistributedDataParallel as DDP

from flowlite import FlowApp

app = FlowApp()


# Below /tmp every user may write. On a cloud's machines a volume is mounted at any path. On this machine it
# is a link where the system gives an ordinary user no mounts of his own, as in most containers.
@app.function(
    gpu="h100:8",
    num_instances=4,
    volumes={
        "/tmp/shared/datasets": {
            "name": "training-data",
            "size_gb": 1000,
            "interface": "file",  # shared access across nodes
        },
        "/tmp/shared/checkpoints": {
            "name": "model-checkpoints",
            "size_gb": 500,
            "interface": "file",  # all nodes can read and write
        },
    },
)
def training_with_shared_storage():
    """Distributed training with shared datasets and checkpoints."""
    import os
    from pathlib import Path

    import torch

    node_rank = int(os.environ["FLOW_NODE_RANK"])

    # All nodes see the same files
    datasets_path = Path("/tmp/shared/datasets")
    checkpoints_path = Path("/tmp/shared/checkpoints")

    dist.init_process_group(backend=backend())

    # Load the dataset, accessible from all nodes
    dataset = load_dataset_from_path(datasets_path)

    model = create_model().to(device())
    model = DDP(model)

    # Coordinated checkpointing
    for epoch in range(10):
        train_epoch(model, dataset)

        # Only one process of the first node saves checkpoints
        if node_rank == 0 and dist.get_rank() == 0:
            checkpoint_path = checkpoints_path / f"epoch_{epoch}.pt"
            torch.save(model.state_dict(), checkpoint_path)
            print(f"Checkpoint saved: {checkpoint_path}")

        # All nodes wait for the checkpoint
        dist.barrier()

    return {"epochs_completed": 10, "checkpoints_saved": True}


if __name__ == "__main__":
    result = scaled(training_with_shared_storage).remote()
    print(result)
