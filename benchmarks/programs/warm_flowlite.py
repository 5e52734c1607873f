"""The same with flowlite, so many times in one process, on nodes that are kept; notes the seconds of the last call."""

import sys
import time
from pathlib import Path

from flowlite import FlowApp

app = FlowApp(keep_warm="10m")


@app.function(num_instances=2, processes_per_node=2, environment={"OMP_NUM_THREADS": "1"})
def train() -> float:
    """A gloo barrier, then 20 steps of DistributedDataParallel."""
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
    dist.destroy_process_group()
    return float(loss.item())


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        start = time.monotonic()
        train.remote()
    Path(sys.argv[2], "seconds").write_text(repr(time.monotonic() - start))
