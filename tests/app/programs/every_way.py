"""A program that does what depends on its `__main__`; test_one_program.py runs it in every way there is.

Each function `row_…` is a row of the table: what it gives must be the same however the program is started.
"""

# %%
from __future__ import annotations

import concurrent.futures
import dataclasses
import inspect
import json
import logging
import multiprocessing
import os
import pickle
import sys
import typing

import pydantic

from flowlite import FlowApp

logging.basicConfig(level=logging.DEBUG, format="%(levelname)s of %(name)s: %(message)s")
multiprocessing.set_start_method("spawn", force=True)
os.environ["SET_AT_THE_TOP"] = "1"
log = logging.getLogger(__name__)
app = FlowApp()


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


FACTOR = {"x": 1}


# %%
def double(x: int) -> int:
    return 2 * x


@app.function
def another(x: int) -> int:
    return x + 1


# %%
def row_logging(_: str) -> object:
    handler = logging.getLogger().handlers[0]
    record = logging.LogRecord(log.name, logging.INFO, "", 0, "hello", (), None)
    return logging.getLogger().level, handler.format(record), len(logging.getLogger().handlers)


def _mapped(method: str) -> object:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(double, [1, 2, 3]), [each.total() for each in pool.map(moved, [Point(1)])]


def moved(point: Point) -> Point:
    return Point(point.x + 1)


def row_process_pool(_: str) -> object:
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return list(pool.map(double, [1, 2]))


def row_start_method(_: str) -> object:
    return multiprocessing.get_start_method()


def row_environment(_: str) -> object:
    return os.environ["SET_AT_THE_TOP"]


def row_pool_fork(_: str) -> object:
    return _mapped("fork")


def row_pool_spawn(_: str) -> object:
    return _mapped("spawn")


def row_pool_forkserver(_: str) -> object:
    return _mapped("forkserver")


def row_pool_of_decorated(_: str) -> object:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(another, [1])


def row_old_checkpoint(path: str) -> object:
    with open(path, "rb") as file:
        return pickle.load(file) == Point(3, Point(4))


def row_plain_pickle(_: str) -> object:
    return pickle.loads(pickle.dumps([Point(1, Point(2)), double])) == [Point(1, Point(2)), double]


def row_type_hints(_: str) -> object:
    return {name: str(hint) for name, hint in typing.get_type_hints(Point).items()}


def row_pydantic(_: str) -> object:
    square = Square(corner={"sides": "4"}, name="b")
    return square.model_dump(), sorted(Square.model_json_schema()["properties"])


def row_get_source(_: str) -> object:
    return inspect.getsource(double)


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
    row_logging,
    row_environment,
    row_start_method,
    row_process_pool,
    row_pool_fork,
    row_pool_spawn,
    row_pool_forkserver,
    row_pool_of_decorated,
    row_old_checkpoint,
    row_plain_pickle,
    row_type_hints,
    row_pydantic,
    row_get_source,
    row_another_function,
    row_changed_values,
    row_names,
]


# %%
@app.function
def every_row(checkpoint: str, out: str) -> Point:
    found = {}
    for row in ROWS:
        try:
            found[row.__name__[4:]] = row(checkpoint)
        except BaseException as error:
            found[row.__name__[4:]] = f"{type(error).__name__}: {error}"
    with open(out, "w") as file:
        json.dump(found, file)
    return Point(5)


# %%
if __name__ == "__main__":
    if sys.argv[1] == "save":
        with open(sys.argv[2], "wb") as file:
            pickle.dump(Point(3, Point(4)), file)
    else:
        point = every_row.remote(sys.argv[1], sys.argv[2])
        print(type(point) is Point, point)
