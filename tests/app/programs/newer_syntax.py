"""A program in the syntax of Python 3.12: type aliases and type parameters. It is run as `every_way.py` is."""

# %%
import dataclasses
import json
import pickle
import sys
import typing

from flowlite import FlowApp

app = FlowApp()
type Vector = list[float]
type Tree[T] = T | list[Tree[T]]
LIMITS = {"low": 1}
if sys.version_info >= (3, 13):
    Defaulted = typing.TypeVar("Defaulted", default=int)


# %%
@dataclasses.dataclass
class Point:
    x: int
    path: Vector | None = None


class Node[T: Node]:
    def add[U: (int, str)](self, value: U) -> T | U:
        return value


class Wrapped[**P, *Ts]:
    function: typing.Callable[P, tuple[*Ts]]


def first[T: Point](tree: Tree[T], default: Vector) -> T:
    return tree[0]


def joined(a: typing.AnyStr, b: typing.AnyStr) -> typing.AnyStr:  # noqa: UP047
    return a + b


def unknown[T: NotDefined](value: T) -> T:  # noqa: F821
    return value


# %%
def row_aliases(_: str) -> object:
    values = str(Vector.__value__), str(Tree.__value__), str(Tree[int]), Vector.__module__
    return values, sys.modules["__main__"].Vector is Vector


def row_function(_: str) -> object:
    (parameter,) = first.__type_params__
    hints = {name: str(hint) for name, hint in typing.get_type_hints(first).items()}
    return str(parameter), parameter.__bound__ is Point, hints, first([1], [])


def row_class(_: str) -> object:
    (parameter,) = Node.__type_params__
    (inner,) = Node.add.__type_params__
    return str(Node[int]), parameter.__bound__ is Node, str(inner.__constraints__), Node().add(1)


def row_other_parameters(_: str) -> object:
    own = joined.__annotations__["a"] is typing.AnyStr
    return str(Wrapped.__type_params__), str(Wrapped[[int], str]), unknown(2), own


def row_class_within(_: str) -> object:
    class Inner:
        type Limits = LIMITS

        def get[T: LIMITS](self) -> T:
            return self

    (parameter,) = Inner.get.__type_params__
    return Inner.Limits.__value__, parameter.__bound__


def row_default(_: str) -> object:
    return sys.version_info < (3, 13) or Defaulted.__default__ is int


def row_point(path: str) -> object:
    with open(path, "rb") as file:
        return pickle.load(file) == Point(3, [1.0]), str(typing.get_type_hints(Point)["path"])


ROWS = [
    row_aliases,
    row_function,
    row_class,
    row_other_parameters,
    row_class_within,
    row_default,
    row_point,
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
            pickle.dump(Point(3, [1.0]), file)
    else:
        point = every_row.remote(sys.argv[1], sys.argv[2])
        print(type(point) is Point, point)
