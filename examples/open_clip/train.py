"""Trains a tiny CLIP with OpenCLIP as it comes from the package index: 2 nodes, 2 processes on each.

    flow run examples/open_clip/train.py::rehearse           # synthetic images; says whether all ranks are one gang
    flow run examples/open_clip/train.py::train --epochs 1   # handwritten digits
    flow run examples/open_clip/train.py::train              # up to 6 epochs: goes on from its last checkpoint

As a command, with OpenCLIP's own options:

    flow run -N 2 --processes-per-node 2 -- python examples/open_clip/train.py \
        --dataset-type synthetic --train-num-samples 256 --batch-size 16

On GPUs that command is `python -m open_clip_train.main …`, with a real model and data set (docs/stacks/open-clip.md).
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from pathlib import Path

from flowlite import Checkpoint, FlowApp

app = FlowApp()
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/flowlite-checkpoints") + "/clip"
# What the CLIP guide trains with: each rank computes its own part of the loss, gradients flow through the gathering.
LOSS = ("--local-loss", "--gather-with-grad")


@app.function(
    name="clip-digits",
    num_instances=2,
    processes_per_node=2,
    dependencies=["open_clip_torch[training]==3.3.0", "scikit-learn"],
    checkpoint=Checkpoint("/flowlite-clip", CHECKPOINTS, every=2),
    retries=1,
)
def train(epochs: int = 6) -> dict[str, float]:
    """Trains up to an epoch, from the last checkpoint there is; gives what rank 0 logged of it."""
    from digits import IMAGES, shards

    logs = os.environ["FLOW_CHECKPOINT_DIR"]
    data = (
        "--train-data",
        shards(),
        "--dataset-type",
        "webdataset",
        "--train-num-samples",
        str(IMAGES),
    )
    # A run that is started again must go on under its old name: OpenCLIP refuses the name without `--resume latest`.
    again = ("--name", "digits", "--resume", "latest", "--logs", logs)
    # At three times this rate all features become alike, and the loss stays at ln(32): 4 ranks with 8 images each.
    size = ("--batch-size", "8", "--workers", "1", "--lr", "0.003", "--epochs", str(epochs))
    open_clip(*data, *again, *size)
    return figures(Path(logs, "digits", "out.log")) if os.environ["RANK"] == "0" else {}


@app.function(name="clip-synthetic", num_instances=2, processes_per_node=2)
def rehearse(batch: int = 16) -> str:
    """One epoch on synthetic images, in the Python of the nodes; compares the first loss with what it must be."""
    world = int(os.environ["WORLD_SIZE"])
    with tempfile.TemporaryDirectory() as logs:
        data = ("--dataset-type", "synthetic", "--train-num-samples", str(2 * world * batch))
        size = ("--batch-size", str(batch), "--workers", "0", "--epochs", "1")
        open_clip(*data, *size, "--name", "rehearsal", "--logs", logs, "--save-frequency", "0")
        if os.environ["RANK"] != "0":
            return ""
        found = figures(Path(logs, "rehearsal", "out.log"))
    # All images are alike, so each is as likely as any other of all that were gathered.
    together = world * batch
    if abs(found["first_loss"] - math.log(together)) > 0.001:
        raise RuntimeError(f"{found}: the ranks did not train together")
    return f"first loss {found['first_loss']:.4f} = ln({together}): {found['world']:.0f} ranks in one gang"


def open_clip(*arguments: str) -> None:
    """OpenCLIP's own program with these arguments."""
    import torch
    from digits import model
    from open_clip_train.main import main

    defaults = [
        "--model",
        f"local-dir:{model()}",
        *LOSS,
        "--warmup",
        "10",
        "--log-every-n-steps",
        "4",
    ]
    if not torch.cuda.is_available():
        _let_ddp_run_on_cpu()
        defaults += ["--device", "cpu", "--precision", "fp32"]
    if main([*defaults, *arguments]) == -1:
        # As a program it would end with code 0, while the other ranks wait.
        raise RuntimeError("OpenCLIP refused to begin; it has printed why")


def _let_ddp_run_on_cpu() -> None:
    """OpenCLIP 3.3.0 names its device to DistributedDataParallel, which allows that for GPUs only."""
    import torch

    gpu_only = torch.nn.parallel.DistributedDataParallel

    class OnCpu(gpu_only):  # type: ignore[misc, valid-type]
        def __init__(self, module: object, device_ids: object = None, **options: object) -> None:
            super().__init__(module, **options)

    torch.nn.parallel.DistributedDataParallel = OnCpu


def figures(log: Path) -> dict[str, float]:
    """Of a log: the size of the gang that made it, its first loss, and the mean of those of its last epoch.

    They are losses of rank 0, whose images webdataset draws anew in every run; one batch alone says little.
    """
    text = log.read_text()
    losses = re.findall(r"Contrastive_loss: (\S+) \((\S+)\)", text)
    worlds = re.findall(r"local 0\), total (\d+)", text)
    speeds = [float(found) for found in re.findall(r" ([\d.e+]+)/s, ", text)]
    return {
        "world": int(worlds[-1]),
        "first_loss": float(losses[0][0]),
        "mean_loss": float(losses[-1][1]),
        "samples_per_s": speeds[-1],
    }


if __name__ == "__main__":
    open_clip(*sys.argv[1:])
