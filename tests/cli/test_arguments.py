"""Options of a function from its signature: every kind of value, and errors that name the parameter."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType, TypeVar

from flowlite.api.app import FlowApp
from flowlite.cli.arguments import call_with, parameters_of, read_arguments
from flowlite.errors import ConfigError


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


def read(function: Callable[..., Any], *words: str) -> dict[str, Any]:
    return read_arguments(parameters_of(function), words, what="train()").complete()


def everything(
    name: str,
    steps: int = 1,
    lr: float = 1e-4,
    resume: bool = False,
    out: Path = Path("."),
    mode: Literal["fast", "slow", 3] = "fast",
    limit: Optional[int] = None,  # noqa: UP045 - the old spelling is what is tested
    seed: int | None = 0,
    label: str | None = None,
    colour: Colour = Colour.RED,
    layers: list[int] = [],  # noqa: B006
    tags: Sequence[str] = (),
    pair: tuple[float, ...] = (),
    either: int | str = 0,
    *,
    batch_size: int = 32,
) -> None: ...


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--name x", {"name": "x"}),
        ("x", {"name": "x"}),
        ("x 7", {"name": "x", "steps": 7}),
        ("--name=x=y", {"name": "x=y"}),
        ("x --steps 1_000", {"name": "x", "steps": 1000}),
        ("x --steps 1e6", {"name": "x", "steps": 1_000_000}),
        ("x --steps 0x10", {"name": "x", "steps": 16}),
        ("x --steps -3", {"name": "x", "steps": -3}),
        ("x --lr 5e-5", {"name": "x", "lr": 5e-5}),
        ("x --lr -.5", {"name": "x", "lr": -0.5}),
        ("x --resume", {"name": "x", "resume": True}),
        ("x --no-resume", {"name": "x", "resume": False}),
        ("x --resume=false", {"name": "x", "resume": False}),
        ("x --no-resume=false", {"name": "x", "resume": True}),
        ("x --out a/b", {"name": "x", "out": Path("a/b")}),
        ("x --mode slow", {"name": "x", "mode": "slow"}),
        ("x --mode 3", {"name": "x", "mode": 3}),
        ("x --limit 5", {"name": "x", "limit": 5}),
        ("x --limit none", {"name": "x", "limit": None}),
        ("x --seed None", {"name": "x", "seed": None}),
        ("x --label none", {"name": "x", "label": "none"}),
        ("x --colour BLUE", {"name": "x", "colour": Colour.BLUE}),
        ("x --colour b", {"name": "x", "colour": Colour.BLUE}),
        ("x --layers 1 --layers 2", {"name": "x", "layers": [1, 2]}),
        ("x --tags a --tags b", {"name": "x", "tags": ["a", "b"]}),
        ("x --pair 1 --pair 2.5", {"name": "x", "pair": (1.0, 2.5)}),
        ("x --either 5", {"name": "x", "either": 5}),
        ("x --either five", {"name": "x", "either": "five"}),
        ("x --batch-size 8", {"name": "x", "batch_size": 8}),
        ("x --batch_size 8", {"name": "x", "batch_size": 8}),
    ],
)
def test_values_are_read_by_their_annotations(words: str, expected: dict[str, Any]) -> None:
    found = read(everything, *words.split())
    assert found == expected
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in expected.items()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", r"train\(\): missing: --name TEXT"),
        ("x --lr", r"train\(\): --lr needs a value: --lr NUMBER"),
        ("x --lr --resume", "--lr needs a value"),
        ("x --lr fast", "--lr: 'fast' is not allowed; give a number"),
        ("x --steps 1.5", "--steps: '1.5' is not allowed; give a whole number"),
        ("x --steps inf", "--steps: 'inf' is not allowed"),
        (
            "x --mode fsat",
            "--mode: 'fsat' is not allowed; give one of fast, slow, 3; did you mean 'fast'?",
        ),
        ("x --colour GREEN", "--colour: 'GREEN' is not allowed; give one of RED, BLUE"),
        ("x --resume=maybe", "--resume: 'maybe' is not allowed; give true or false"),
        ("x --learning-rate 1", r"no option --learning-rate; it has --name, --steps"),
        ("x --batchsize 1", "did you mean '--batch-size'?"),
        ("x --steps 1 --steps 2", "--steps is given twice"),
    ],
)
def test_mistakes_name_the_parameter(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        read(everything, *words.split())


def test_a_function_without_annotations_takes_its_types_from_the_defaults() -> None:
    def train(name, lr=0.1, steps=3, verbose=False, layers=(1, 2)):  # type: ignore[no-untyped-def]
        ...

    assert read(train, "1", "--lr", "1", "--steps", "4", "--verbose", "--layers", "5") == {
        "name": "1",
        "lr": 1.0,
        "steps": 4,
        "verbose": True,
        "layers": (5,),
    }


def test_values_without_a_text_form_are_refused_only_when_needed() -> None:
    def train(model: dict[str, int], extra: object = None, other: bytes = b"") -> None: ...

    with pytest.raises(ConfigError, match=r"--model is a dict.*call the function from Python"):
        read(train)

    def fine(other: bytes = b"") -> None: ...

    assert read(fine) == {}
    with pytest.raises(ConfigError, match="--other is a bytes"):
        read(fine, "--other", "x")


def test_one_argument_too_many_is_named() -> None:
    def train(lr: float = 1.0) -> None: ...

    with pytest.raises(ConfigError, match="'2' is one argument too many; it takes --lr"):
        read(train, "1", "2")
    with pytest.raises(ConfigError, match="it takes none"):
        read(lambda: None, "1")


def test_decorated_functions_are_read_through() -> None:
    @FlowApp().function(num_instances=2)
    def train(lr: float = 1e-4) -> float:
        return lr

    assert read(train, "--lr", "5e-5") == {"lr": 5e-5}


def test_an_annotation_that_cannot_be_resolved_falls_back_to_the_default() -> None:
    def train(model: NotThere = 3, name: str = "") -> None:  # type: ignore[name-defined] # noqa: F821
        ...

    found = parameters_of(train)
    assert [parameter.option for parameter in found] == ["--model", "--name"]
    assert read(train, "--name", "x") == {"name": "x"}


Rate = TypeAliasType("Rate", float)
Item = TypeVar("Item")


@pytest.mark.parametrize(
    ("annotation", "words", "expected"),
    [
        (Rate, "0.3", 0.3),
        (Rate | None, "none", None),
        (TypeAliasType("Maybe", Rate | None), "0.3", 0.3),
        (TypeAliasType("Schedule", Literal["cosine", "linear"]), "linear", "linear"),
        (TypeAliasType("Sizes", list[int]), "4 5", [4, 5]),
        (list[Rate], "1 2.5", [1.0, 2.5]),
        (TypeAliasType("Pair", tuple[Item, Item], type_params=(Item,))[int], "1 2", (1, 2)),
        (TypeAliasType("Described", Annotated[Rate, "per step"]), "0.3", 0.3),
        (NewType("Steps", int), "1e3", 1000),
        (TypeAliasType("Flag", bool), "", True),
    ],
    ids=str,
)
def test_a_name_of_a_type_is_read_as_the_type(annotation: Any, words: str, expected: Any) -> None:
    """As `type Rate = float` makes it, from Python 3.12 on."""

    def train(value=None) -> None:  # type: ignore[no-untyped-def]
        ...

    train.__annotations__["value"] = annotation
    assert read(train, "--value", *words.split()) == {"value": expected}


OTHERS = {"--num-instances": True, "-N": True, "--dry-run": False, "--lr": True}


def test_options_of_somebody_else_are_passed_over() -> None:
    def train(lr: float = 1.0, name: str = "") -> None: ...

    reading = read_arguments(
        parameters_of(train),
        ["-N", "4", "--lr", "2", "--dry-run", "-N4", "--num-instances=2", "--name", "x"],
        OTHERS,
    )
    # Its own parameters come first, also where somebody else has an option of that name.
    assert reading.complete() == {"lr": 2.0, "name": "x"}
    assert reading.foreign == ["-N", "4", "--dry-run", "-N4", "--num-instances=2"]
    assert reading.own == ["--lr", "2", "--name", "x"]


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text())
def test_whatever_is_printed_is_read_back(number: int, real: float, flag: bool, text: str) -> None:
    def train(number: int, real: float, flag: bool, text: str) -> None: ...

    words = [f"--number={number}", f"--real={real!r}", f"--flag={flag}", f"--text={text}"]
    assert read(train, *words) == {"number": number, "real": real, "flag": flag, "text": text}


def by_position(a: int, b: str = "b", /, c: float = 0.0) -> tuple[int, str, float]:
    return a, b, c


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("3",), (3, "b", 0.0)),
        (("--a", "3", "--c", "2"), (3, "b", 2.0)),
        (("3", "x", "1"), (3, "x", 1.0)),
        (("--b", "y", "--a", "3"), (3, "y", 0.0)),
    ],
)
def test_parameters_that_are_given_by_position_only(
    words: Sequence[str], expected: tuple[int, str, float]
) -> None:
    parameters = parameters_of(by_position)
    values, named = call_with(parameters, read(by_position, *words))
    assert by_position(*values, **named) == expected


def by_name(steps: int, lr: float = 1.0, *, dry_run: bool = False, names: list[str] = []) -> None:  # noqa: B006
    ...


def test_parameters_that_are_given_by_name_only() -> None:
    """As in a call from Python, a word too many does not become one of them."""
    assert read(by_name, "5", "0.1") == {"steps": 5, "lr": 0.1}
    assert read(by_name, "5", "--dry-run") == {"steps": 5, "dry_run": True}
    told = r"'true' is one argument too many; it takes --steps, --lr, and by name only: --dry-run, --names"
    with pytest.raises(ConfigError, match=told):
        read(by_name, "5", "0.1", "true")
    with pytest.raises(ConfigError, match="too many"):
        read(by_name, "--names", "a", "--lr", "1", "--steps", "5", "b")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--dry-run false", {"dry_run": False}),
        ("--dry-run True elsewhere", {"dry_run": True, "out": "elsewhere"}),
        ("--no-dry-run true --out x", {"dry_run": False, "out": "x"}),
        ("--dry-run elsewhere", {"dry_run": True, "out": "elsewhere"}),
    ],
)
def test_a_truth_value_after_a_flag_is_the_flags(words: str, expected: dict[str, Any]) -> None:
    """`--dry-run false` was a dry run, and "false" the next text."""

    def train(dry_run: bool = False, out: str = "runs") -> None: ...

    assert read(train, *words.split()) == expected


def fixed(
    pair: tuple[float, float] = (0.9, 0.999), mixed: tuple[int, str] | None = None
) -> None: ...


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--pair 1 2", {"pair": (1.0, 2.0)}),
        ("--pair=1 --pair=2", {"pair": (1.0, 2.0)}),
        ("--mixed 3 b", {"mixed": (3, "b")}),
        ("1 2 3 b", {"pair": (1.0, 2.0), "mixed": (3, "b")}),
        ("--pair 1 2 3 b", {"pair": (1.0, 2.0), "mixed": (3, "b")}),
    ],
)
def test_a_tuple_of_fixed_length_takes_as_many_values(
    words: str, expected: dict[str, object]
) -> None:
    assert read(fixed, *words.split()) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--pair 1", "--pair takes 2 values, and got 1: --pair NUMBER NUMBER"),
        ("--pair 1 2 --pair 3", "--pair takes 2 values, and got more"),
        ("--mixed b b", "--mixed: 'b' is not allowed; give a whole number"),
    ],
)
def test_a_tuple_of_fixed_length_takes_no_other_number(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(fixed, *words.split())
