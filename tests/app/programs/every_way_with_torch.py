"""As every_way.py, of torch; test_one_program.py runs it in every way there is.

Each function `row_…` is a row of the table: what it gives must be the same however the program is started.
"""

# %%
from __future__ import annotations

import dataclasses
import io
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flowlite import FlowApp

torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
app = FlowApp(processes_per_node=2)


# %%
@dataclasses.dataclass
class Point:
    x: int


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


class Numbers(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return double(index)


# %%
def double(x: int) -> int:
    return 2 * x


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


# %%
def row_default_dtype(_: str) -> object:
    return str(torch.zeros(1).dtype)


def row_manual_seed(_: str) -> object:
    return torch.initial_seed(), round(torch.rand(1).item(), 6)


def row_data_loader(_: str) -> object:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    return [batch.tolist() for batch in loader]


def row_save_and_load(_: str) -> object:
    saved = io.BytesIO()
    torch.save(Net(), saved)
    saved.seek(0)
    again = torch.load(saved, weights_only=False)
    return isinstance(again, Net), type(again).__module__


def row_old_checkpoint(path: str) -> object:
    net = torch.load(path, weights_only=False)
    return isinstance(net, Net), tuple(net(torch.zeros(1, 2)).shape)


def row_script(_: str) -> object:
    return torch.jit.script(scripted)(torch.zeros(1)).tolist()


ROWS = [
    row_default_dtype,
    row_manual_seed,
    row_data_loader,
    row_save_and_load,
    row_old_checkpoint,
    row_script,
]


# %%
def gathered() -> object:
    dist.init_process_group("gloo")
    points = [None] * dist.get_world_size()
    dist.all_gather_object(points, Point(dist.get_rank()))
    dist.destroy_process_group()
    return points == [Point(0), Point(1)]


@app.function
def every_row(checkpoint: str, out: str) -> Point:
    found = {}
    if os.environ["RANK"] == "0":
        for row in ROWS:
            try:
                found[row.__name__[4:]] = row(checkpoint)
            except BaseException as error:
                found[row.__name__[4:]] = f"{type(error).__name__}: {error}"
    found["all_gather_object"] = gathered()
    if os.environ["RANK"] == "0":
        with open(out, "w") as file:
            json.dump(found, file)
    return Point(5)


# %%
if __name__ == "__main__":
    if sys.argv[1] == "save":
        torch.save(Net(), sys.argv[2])
    else:
        point = every_row.remote(sys.argv[1], sys.argv[2])
        print(type(point) is Point, point)
