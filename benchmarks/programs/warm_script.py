"""A script as torchrun starts it: a gloo barrier, then 20 steps of DistributedDataParallel; leaves a mark."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
dist.barrier()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
Path(sys.argv[1], str(dist.get_rank())).write_text(repr(time.monotonic()))
dist.destroy_process_group()
