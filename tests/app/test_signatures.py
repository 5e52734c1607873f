"""What `help()`, `inspect` and an IDE say of a decorated function and of its ways to be called."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.spec.options import TaskOptions

app = FlowApp()


@app.function(num_instances=2)
def train(lr: float, *, self: int = 1, steps: int = 10) -> float:
    """Trains the model.

    With a rate.
    """
    return lr * steps * self


@app.function
def bare(lr): return lr  # type: ignore[no-untyped-def]  # fmt: skip


@app.function
async def later(x: int) -> int:
    return x


def shown(thing: object) -> str:
    return pydoc.plain(pydoc.render_doc(thing))


PARAMETERS = "(lr: 'float', *, self: 'int' = 1, steps: 'int' = 10)"


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (train, "'float'"),
        (train.local, "'float'"),
        (train.remote, "'float'"),
        (train.remote.aio, "'float'"),
        (train.spawn, "'Task[Any]'"),
        (train.build_task_config, "'TaskConfig'"),
        (train.options(num_instances=3).spawn, "'Task[Any]'"),
    ],
)
def test_every_way_to_call_has_the_users_signature(call: Callable[..., Any], result: str) -> None:
    assert str(inspect.signature(call)) == f"{PARAMETERS} -> {result}"


def test_help_shows_the_users_function() -> None:
    text = shown(train)
    assert f"train{PARAMETERS} -> 'float'\n    Trains the model.\n" in text
    assert "Method resolution order" not in text
    # Without a docstring there is the signature alone, as of any function.
    assert shown(bare).endswith("\n\nbare(lr)\n")


@pytest.mark.parametrize("name", ["remote", "spawn", "local"])
def test_help_on_a_way_to_call_shows_the_signature_and_what_it_does(name: str) -> None:
    text = shown(getattr(train, name))
    assert f"{name}{PARAMETERS}" in text
    assert "gang" in text or "process" in text


def test_what_is_asynchronous_still_is() -> None:
    assert inspect.iscoroutinefunction(train.remote.aio)
    assert not inspect.iscoroutinefunction(later.spawn)
    assert str(inspect.signature(later.spawn)) == "(x: 'int') -> 'Task[Any]'"


def test_arguments_of_any_name_arrive() -> None:
    assert train.local(2.0, self=3, steps=1) == 6.0
    config = train.build_task_config(2.0, self=3)
    assert config.call is not None
    assert config.call.kwargs == {"self": 3}


def test_a_decorated_function_in_a_class_is_no_method() -> None:
    class Holder:
        function = train

    assert Holder().function is train
    assert Holder().function(1.0) == 10.0


def test_the_decorators_help_names_every_option() -> None:
    text = shown(app.function)
    assert [name for name in TaskOptions.__annotations__ if f"`{name}`" not in text] == []
