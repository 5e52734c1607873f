"""Dataclasses of `flowlite.node.quick_dataclass` behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.quick_dataclass import dataclass as quick

NAMES = ("a", "b", "c", "d")
VALUES = st.sampled_from([0, 1, "x", 2.5, None])


@st.composite
def definitions(draw: st.DrawFn) -> tuple[dict[str, bool], list[tuple[str, dict[str, Any]]]]:
    """The arguments of the decorator, and the fields with the arguments of `field`."""
    how = {name: draw(st.booleans()) for name in ("frozen", "slots", "eq", "repr", "kw_only")}
    fields: list[tuple[str, dict[str, Any]]] = []
    has_default = False
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        what: dict[str, Any] = {
            option: False for option in ("repr", "compare", "init") if draw(st.integers(0, 4)) == 0
        }
        kind = draw(st.sampled_from(["plain", "default", "factory"]))
        # A field without a default cannot follow one with a default, nor be left out of the arguments.
        if kind == "plain" and not has_default:
            what.pop("init", None)
        elif kind == "factory":
            what["default_factory"] = list
        else:
            what["default"] = draw(VALUES)
        has_default = has_default or "default" in what or "default_factory" in what
        fields.append((name, what))
    return how, fields


def make(decorator: Any, how: dict[str, bool], fields: list[tuple[str, dict[str, Any]]]) -> Any:
    namespace: dict[str, Any] = {
        "__annotations__": {name: "object" for name, _ in fields},
        "__doc__": "A class.",
        "__module__": __name__,
        "__qualname__": "Made",
        **{name: field(**what) for name, what in fields},
    }
    return decorator(**how)(types.new_class("Made", (), {}, lambda body: body.update(namespace)))


def outcome(do: Callable[[], Any]) -> Any:
    """What a call returns, or which exception it raises."""
    try:
        return do()
    except Exception as error:
        return type(error)


def looks(made: Any, other: Any) -> list[Any]:
    """All that can be seen of an instance, `other` being one of the same class."""
    if isinstance(made, type):
        return [made]
    names = [each.name for each in dataclasses.fields(made)]
    changed = copy.copy(made)
    return [
        [getattr(made, name) for name in names],
        made == other,
        made == made,
        made == 1,
        outcome(lambda: hash(made) == hash(copy.copy(made))) if type(made).__hash__ else None,
        outcome(lambda: hash(made) == hash(other)),
        repr(made).partition(" object at ")[0],
        dataclasses.asdict(made),
        dataclasses.astuple(made),
        outcome(lambda: repr(dataclasses.replace(made, a=7)).partition(" object at ")[0]),
        [outcome(lambda name=name: setattr(changed, name, 3)) for name in names],
        [outcome(lambda name=name: delattr(changed, name)) for name in names],
        # With slots, Python 3.11 refuses an unknown name by another exception than it meant to.
        isinstance(outcome(lambda: setattr(changed, "unknown", 3)), type),
        outcome(lambda: [getattr(changed, name, "gone") for name in names]),
    ]


def facts(cls: type) -> list[Any]:
    """What a class says of itself and of its fields."""
    names = ("__slots__", "__dict__", "__module__", "__doc__", *NAMES)
    of_fields = ("name", "type", "default", "init", "repr", "hash", "compare", "kw_only")
    return [
        [
            [getattr(each, fact) for fact in of_fields] + [each._field_type]  # type: ignore[attr-defined]
            for each in dataclasses.fields(cls)
        ],
        [name for name in names if name in vars(cls)],
        [vars(cls)[name] for name in NAMES if name in vars(cls) and "__slots__" not in vars(cls)],
        hasattr(cls, "__replace__"),
        # Not whether it has `__weakref__`: Python 3.11.2 leaves that of the class without slots in the one with slots.
        cls.__weakrefoffset__ != 0,
    ]


@given(
    definitions(),
    st.lists(VALUES, max_size=5),
    st.dictionaries(st.sampled_from((*NAMES, "e")), VALUES, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
)
def test_all_that_can_be_seen_of_a_class_is_as_with_the_standard_library(
    definition: tuple[dict[str, bool], list[tuple[str, dict[str, Any]]]],
    args: list[Any],
    given_names: dict[str, Any],
    others: dict[str, Any],
) -> None:
    ours, theirs = make(quick, *definition), make(dataclasses.dataclass, *definition)
    for one in (ours, theirs):
        one.__name__ = one.__qualname__ = "Made"
    seen = [
        looks(
            outcome(lambda cls=cls: cls(*args, **given_names)),
            outcome(lambda cls=cls: cls(**others)),
        )
        for cls in (ours, theirs)
    ]
    assert seen[0] == seen[1]
    assert ours.__match_args__ == theirs.__match_args__
    assert dataclasses.is_dataclass(ours)
    assert facts(ours) == facts(theirs)
    signatures = [
        [
            (each.name, each.kind, each.default is inspect.Parameter.empty)
            for each in parameters.values()
        ]
        for parameters in (inspect.signature(ours).parameters, inspect.signature(theirs).parameters)
    ]
    assert signatures[0] == signatures[1]


@quick(frozen=True, slots=True)
class Point:
    """A point."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@quick(frozen=True, slots=True)
class Named(Point):
    """A point with a name."""

    name: str = ""


def test_pickles_and_copies_are_equal() -> None:
    named = Named(1, tags=["a"], name="n")
    for again in (pickle.loads(pickle.dumps(named)), copy.copy(named), copy.deepcopy(named)):
        assert again == named
        assert again.tags == ["a"]
    assert {named: 1}[pickle.loads(pickle.dumps(named))] == 1


def test_a_subclass_has_the_fields_of_both() -> None:
    assert repr(Named(1, 2, name="n")) == "Named(x=1, y=2, tags=[], name='n')"
    assert Named(1) != Point(1)
    with pytest.raises(ValueError, match="negative"):
        Named(-1)


def test_each_instance_gets_its_own_value_of_a_factory() -> None:
    assert Point(1).tags is not Point(1).tags


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Point(), r"Point.__init__\(\) missing required arguments: x"),
        (lambda: Point(1, z=2), r"Point.__init__\(\) got an unexpected keyword argument 'z'"),
        (lambda: Point(1, x=2), r"Point.__init__\(\) got multiple values for an argument"),
        (
            lambda: Point(1, 2, [], 4),
            r"Point.__init__\(\) takes 3 positional arguments but 4 were given",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


_COUNTS = """
import dataclasses, sys
from flowlite.node.quick_dataclass import dataclass as quick

def made(decorator):
    class Made:
        "A class."
        a: int
        b: int = 1
    compiled.clear()
    decorator(frozen=True, slots=True)(Made)
    # From Python 3.13 on, `dataclasses` compiles all methods within one function, and that one if there are none.
    return "".join(compiled).replace("__create_fn__", "").count("def __")

compiled = []
sys.addaudithook(lambda event, args: compiled.append(str(args[0])) if event == "compile" else None)
print(made(quick), made(dataclasses.dataclass) > 0)
"""


def test_no_method_is_compiled_for_a_class() -> None:
    """What makes classes of `dataclasses` slow."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 True\n"


def test_a_class_without_a_docstring_gets_one_without_its_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`dataclasses` reads the signature of `object` for that, which takes longer than all the rest."""
    monkeypatch.delattr(inspect, "signature")

    @quick(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 0

    assert Point.__doc__ == "Point"
    assert Point(1).y == 0


@pytest.mark.parametrize("slots", [False, True])
def test_dataclasses_is_left_alone_for_a_simple_class(
    monkeypatch: pytest.MonkeyPatch, slots: bool
) -> None:
    """To find the fields takes it longer than all the rest. It is asked once, how it marks a class and a field."""
    asked: list[type] = []
    original = dataclasses.dataclass

    def dataclass(cls: type, **how: Any) -> type:
        asked.append(cls)
        return original(cls, **how)

    quick(slots=slots)(type("First", (), {"__annotations__": {"x": "int"}, "__module__": __name__}))
    monkeypatch.setattr(dataclasses, "dataclass", dataclass)

    @quick(slots=slots)
    class Simple:
        x: int
        y: list[int] = field(default_factory=list)

    @quick(slots=slots)
    class Special:
        kind: ClassVar[str] = "special"
        x: int

    @quick(slots=slots)
    class Below(Simple):
        z: int = 0

    assert [each.__name__ for each in asked] == ["Special", "Below"]
    assert Simple(1) == Simple(1)
    assert Special(2).kind == "special"
    assert Below(1, [], 3).z == 3


def test_a_default_that_all_instances_would_share_is_refused() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @quick
        class Shared:
            x: list[int] = []  # noqa: RUF012


@pytest.mark.parametrize("made_by", [quick, dataclasses.dataclass])
@pytest.mark.parametrize("slots", [False, True])
def test_a_default_that_is_a_static_method_is_its_function(made_by: Any, slots: bool) -> None:
    class Counter:
        count: Callable[[list[int]], int] = staticmethod(len)

    made = made_by(slots=slots)(Counter)
    assert dataclasses.fields(made)[0].default is len
    assert made().count([1, 2]) == 2
