"""A program that does what depends on its `__main__`; test_one_program.py runs it in every way there is.

Each function `row_…` is a row of the table: what it gives must be the same however the program is started.
"""

# %%
from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import logging
import multiprocessing
import os
import pickle
import sys
import typing

import pydantic
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flowlite import FlowApp

torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s of %(name)s: %(message)s")
log = logging.getLogger(__name__)
app = FlowApp(processes_per_node=2)


# %%
@dataclasses.dataclass
class Point:
    x: int
    y: typing.Optional[Point] = None  # noqa: UP045

    def total(self) -> int:
        return self.x * FACTOR["x"]


class Shape(pydantic.BaseModel):
    sides: int = 3


class Square(Shape):
    corner: Shape | None = None
    name: str = "square"

    @pydantic.field_validator("name")
    @classmethod
    def upper(cls, value: str) -> str:
        return value.upper()


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


FACTOR = {"x": 1}


# %%
def double(x: int) -> int:
    return 2 * x


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@app.function
def another(x: int) -> int:
    return x + 1


# %%
def row_default_dtype(_: str) -> object:
    return str(torch.zeros(1).dtype)


def row_manual_seed(_: str) -> object:
    return torch.initial_seed(), round(torch.rand(1).item(), 6)


def row_logging(_: str) -> object:
    handler = logging.getLogger().handlers[0]
    record = logging.LogRecord(log.name, logging.INFO, "", 0, "hello", (), None)
    return logging.getLogger().level, handler.format(record), len(logging.getLogger().handlers)


def _mapped(method: str) -> object:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(double, [1, 2, 3]), [each.total() for each in pool.map(moved, [Point(1)])]


def moved(point: Point) -> Point:
    return Point(point.x + 1)


def row_pool_fork(_: str) -> object:
    return _mapped("fork")


def row_pool_spawn(_: str) -> object:
    return _mapped("spawn")


def row_pool_forkserver(_: str) -> object:
    return _mapped("forkserver")


def row_pool_of_decorated(_: str) -> object:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(another, [1])


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


def row_plain_pickle(_: str) -> object:
    return pickle.loads(pickle.dumps([Point(1, Point(2)), double])) == [Point(1, Point(2)), double]


def row_type_hints(_: str) -> object:
    return {name: str(hint) for name, hint in typing.get_type_hints(Point).items()}


def row_pydantic(_: str) -> object:
    square = Square(corner={"sides": "4"}, name="b")
    return square.model_dump(), sorted(Square.model_json_schema()["properties"])


def row_get_source(_: str) -> object:
    return inspect.getsource(double)


def row_script(_: str) -> object:
    return torch.jit.script(scripted)(torch.zeros(1)).tolist()


def row_another_function(_: str) -> object:
    try:
        another.remote(1)
    except Exception as error:
        said = type(error).__name__, "called by a worker of task" in str(error)
    return said, another(1), another.local(2)


def row_changed_values(_: str) -> object:
    return FACTOR, Point(2).total()


def row_names(_: str) -> object:
    return __name__, Point.__module__, log.name, sys.modules["__main__"].Point is Point


ROWS = [
    row_default_dtype,
    row_manual_seed,
    row_logging,
    row_pool_fork,
    row_pool_spawn,
    row_pool_forkserver,
    row_pool_of_decorated,
    row_data_loader,
    row_save_and_load,
    row_old_checkpoint,
    row_plain_pickle,
    row_type_hints,
    row_pydantic,
    row_get_source,
    row_script,
    row_another_function,
    row_changed_values,
    row_names,
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
        with contextlib.suppress(ImportError):
            point = every_row.remote(sys.argv[1], sys.argv[2])
        print(type(point) is Point, point)
