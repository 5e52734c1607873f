"""Trains a classifier of handwritten digits with DistributedDataParallel: 4 nodes, 2 processes on each.

    python examples/digits_ddp.py       # 20 epochs; run it again and it goes on from its checkpoint
    python examples/digits_ddp.py 40    # up to epoch 40

On GPUs, with nccl: `flow run --gpu h100:2 examples/digits_ddp.py::train`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flowlite import FlowApp

app = FlowApp()
CHECKPOINTS = "/tmp/digits"  # the path at which every node sees the volume


@app.function(
    name="digits",
    num_instances=4,
    processes_per_node=2,
    volumes={CHECKPOINTS: {"name": "digits", "interface": "file"}},
)
def train(epochs: int = 20) -> dict[str, object]:
    """Trains up to the given epoch; returns the held-out accuracy and the ranks that took part."""
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    cuda = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16, digits, test_size=360, stratify=digits, random_state=0)
    train_x, test_x, train_y, test_y = (torch.as_tensor(part).to(device) for part in split)
    share = slice(rank, len(train_x) // world * world, world)  # as many images on every rank
    x, y = train_x[share].float(), train_y[share]

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    checkpoint, done = Path(CHECKPOINTS) / "last.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epochs"]
    print(f"rank {rank} of {world}: {len(x)} images on {device}, {done} epochs done before")

    for epoch in range(done + 1, epochs + 1):
        for some_x, some_y in zip(x.split(32), y.split(32), strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(model(some_x), some_y)
            loss.backward()
            optimizer.step()
        if rank == 0 and (epoch % 5 == 0 or epoch == epochs):
            print(f"epoch {epoch}: loss {loss.item():.3f}, checkpoint written")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"epochs": epoch}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)

    with torch.no_grad():
        right = (model(test_x.float()).argmax(1) == test_y).float().mean().item()
    ranks: list[int] = [0] * world
    dist.all_gather_object(ranks, rank)
    dist.destroy_process_group()
    return {"accuracy": right, "ranks": ranks}


if __name__ == "__main__":
    task = train.spawn(*map(int, sys.argv[1:]))
    for line in task.logs(follow=True):
        print(line)
    result = task.result()
    print(f"held-out accuracy {result['accuracy']:.3f}, trained by ranks {result['ranks']}")
