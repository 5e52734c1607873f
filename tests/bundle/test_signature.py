"""Errors in the call itself come first, and say what the call should have been."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from flowlite.bundle.signature import bind, function_name
from flowlite.errors import ArgumentError, BundleError
from flowlite.node.serialization.pickling import unwrap


def train(data: str, lr: float = 1e-4, *, epochs: int = 1) -> dict[str, float]:
    return {}


class Decorated:
    __flowlite_function__ = True

    def __init__(self, fn: Any) -> None:
        self.__wrapped__ = fn


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'data'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"epoch": 1}, "unexpected keyword argument 'epoch'; did you mean 'epochs'?"),
        ((), {"dat": "a"}, "unexpected keyword argument 'dat'; did you mean 'data'?"),
        (("a",), {"zzz": 1}, "unexpected keyword argument 'zzz'; its signature"),
        (("a",), {"data": "b"}, "multiple values for argument 'data'"),
    ],
)
def test_wrong_calls_are_refused_with_the_signature(
    args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        bind(train, args, kwargs)
    text = str(caught.value)
    assert text.startswith("train() ")
    assert says in text
    assert "lr: 'float' = 0.0001" in text
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, BundleError)
    assert caught.value.exit_code == 2


def test_right_calls_bind() -> None:
    bound = bind(train, ("a",), {"epochs": 3})
    assert bound is not None
    assert bound.arguments == {"data": "a", "epochs": 3}
    assert bind(lambda *a, **k: 0, (1, 2), {"x": 3}) is not None
    assert bind(functools.partial(train, "a"), (), {"lr": 2.0}) is not None
    assert bind(Decorated(train), ("a",), {}) is not None


def test_functions_without_a_signature_are_let_through() -> None:
    assert bind(type, (1,), {}) is None


def test_only_our_decorator_is_taken_off() -> None:
    @functools.wraps(train)
    def other(*args: Any) -> Any:
        return train(*args)

    assert unwrap(Decorated(Decorated(train))) is train
    assert unwrap(Decorated(other)) is other
    assert unwrap(other) is other


def test_names_for_messages() -> None:
    def inner() -> None: ...

    assert function_name(train) == "train"
    assert function_name(inner) == "inner"
    assert function_name(functools.partial(train)) == "train"
    assert function_name(Decorated.__init__) == "Decorated.__init__"
    assert function_name(Decorated(train)) == "Decorated"
