"""The guide's first example: a function, the GPUs it needs, and how many nodes of them."""

import torch.distributed as dist
from scale import scaled
from stubs import backend

from flowlite import FlowApp

app = FlowApp()


@app.function(gpu="h100:8", num_instances=4, distributed_mode="auto")
def distributed_training():
    # flowlite sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    dist.init_process_group(backend=backend())

    # Your training code here...
    dist.barrier()
    return dist.get_world_size()


if __name__ == "__main__":
    print(f"{scaled(distributed_training).remote()} processes trained together")
