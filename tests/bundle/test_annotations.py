"""Functions whose annotations name what only type checkers import."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.bundle.signature import bind
from flowlite.cli.arguments import parameters_of, read_arguments
from flowlite.errors import ArgumentError
from flowlite.node.serialization import pickling
from flowlite.node.serialization.pickling import annotations_of


@pytest.fixture
def train() -> Callable[..., Any]:
    """Such a function. Before Python 3.14, it can only be defined if annotations are text."""
    before = "from __future__ import annotations\n" if sys.version_info < (3, 14) else ""
    source = textwrap.dedent("""
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from torch import Tensor


        def train(lr: float, model: Tensor = None, *, names: list[Tensor] = ()) -> Tensor:
            return lr * 2
    """)
    names: dict[str, Any] = {"__name__": "nowhere_to_import"}
    exec(compile(before + source, "train.py", "exec"), names)
    return names["train"]  # type: ignore[no-any-return]


def test_calls_are_bound_and_refused_with_the_signature(train: Callable[..., Any]) -> None:
    assert bind(train, (0.1,), {}) is not None
    with pytest.raises(ArgumentError, match=r"its signature is .*model: '?Tensor"):
        bind(train, (), {})


def test_such_a_function_can_be_decorated_and_shown(train: Callable[..., Any]) -> None:
    decorated = FlowApp().function(train)
    assert "Tensor" in repr(decorated)
    for method in (decorated.remote, decorated.spawn):
        assert list(inspect.signature(method).parameters) == ["lr", "model", "names"]


def test_its_options_are_read(train: Callable[..., Any]) -> None:
    reading = read_arguments(parameters_of(train), ["--lr", "1e-4"])
    assert reading.complete() == {"lr": 1e-4}


def test_it_is_pickled_by_value(train: Callable[..., Any]) -> None:
    pickled = pickling.dumps(train, to_worker=False)
    loaded = pickling.loads(b"".join(pickled.stream), pickled.buffers)
    assert loaded(3) == 6
    assert annotations_of(loaded)["model"] == "Tensor"
