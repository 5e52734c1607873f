"""A script as torchrun starts it: `ddp.py BACKEND`, 20 steps of DistributedDataParallel on the GPU."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

device = os.environ["GPU_CHECK_DEVICE"]
backend = sys.argv[1] if device == "cuda" else "gloo"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group(backend)
model = DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(64, 256, device=device)).square().mean().backward()
    optimizer.step()
total = torch.ones(1, device=device)
dist.all_reduce(total)
seen = os.environ.get("CUDA_VISIBLE_DEVICES")
print(f"rank {dist.get_rank()} of {int(total)} trained with {dist.get_backend()}, GPUs {seen}")
# Without it a rank that is still in gloo is aborted now and then when the other one leaves.
dist.barrier()
dist.destroy_process_group()
