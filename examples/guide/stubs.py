"""What the guide leaves open: a small model, its data, and the choice between GPUs and a rehearsal on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

FEATURES, CLASSES, BATCH, STEPS = 16, 4, 32, 2


def device() -> torch.device:
    """This worker's GPU, or the CPU where the node has fewer GPUs than workers."""
    enough = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if enough else torch.device("cpu")


def backend() -> str:
    """nccl between GPUs, gloo between CPUs."""
    return "nccl" if device().type == "cuda" else "gloo"


def device_ids() -> list[int] | None:
    """For `DistributedDataParallel`."""
    return [int(os.environ["LOCAL_RANK"])] if device().type == "cuda" else None


def create_model() -> nn.Module:
    """A network with one hidden layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def make_dataset(batches: int = STEPS, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Points in clouds, one for each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=generator) * 3
    labels = torch.randint(CLASSES, (batches, BATCH), generator=generator)
    noise = torch.randn(batches, BATCH, FEATURES, generator=generator)
    return [(centres[label] + cloud, label) for label, cloud in zip(labels, noise, strict=True)]


def load_dataset_from_path(path: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The data set in that directory; rank 0 writes it there first, if it is not there yet."""
    file = path / "clouds.pt"
    if torch.distributed.get_rank() == 0 and not file.exists():
        torch.save(make_dataset(), file)
    torch.distributed.barrier()
    return torch.load(file)


def load_dataset_from_s3_mount(path: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The data set in the mounted bucket."""
    return torch.load(Path(path) / "clouds.pt")


def train_epoch(
    model: nn.Module,
    dataset: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    learning_rate: float = 0.05,
) -> float:
    """One pass over the data; the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    target = next(model.parameters()).device
    loss = torch.zeros(())
    for points, labels in dataset or make_dataset():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points.to(target)), labels.to(target))
        loss.backward()
        optimizer.step()
    return float(loss)
