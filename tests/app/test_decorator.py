"""The decorator: both forms, what it refuses, and what a function still is after it."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import pickle
import subprocess
import sys
import types
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from flowlite import FlowApp, Function, SpecError, TaskConfig

app = FlowApp()


@app.function(gpu="h100:8", num_instances=4)
def train(lr: float = 1e-4, *, steps: int = 1) -> float:
    """Trains."""
    return lr * steps


@app.function
def bare(x: int) -> int:
    return x + 1


def test_both_forms_give_functions_that_still_run_here() -> None:
    assert isinstance(train, Function)
    assert isinstance(bare, Function)
    assert train(2.0, steps=3) == train.local(2.0, steps=3) == 6.0
    assert bare(1) == 2
    empty = app.function()(lambda: 5)
    assert empty() == 5


def test_a_function_looks_as_before() -> None:
    assert train.__name__ == "train"
    assert train.__doc__ == "Trains."
    assert train.__module__ == __name__
    assert str(inspect.signature(train)) == "(lr: 'float' = 0.0001, *, steps: 'int' = 1) -> 'float'"
    assert train.__flowlite_function__ is True
    assert "train" in repr(train)
    assert "gpu='h100:8'" in repr(train)


def test_other_decorators_below_stay() -> None:
    def twice(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any) -> Any:
            return 2 * fn(*args)

        return wrapper

    @app.function
    @twice
    def f(x: int) -> int:
        return x

    assert f(3) == 6


class Thing:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...


def generator() -> Any:
    yield 1


async def asynchronous_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (Thing, "a class cannot run on a node"),
        (Thing.method, "a method needs its object"),
        (Thing().method, "a method cannot run on a node"),
        (staticmethod(Thing.static), "a method cannot run on a node"),
        (generator, "a generator cannot be sent back from a node; return a list"),
        (asynchronous_generator, "a generator cannot be sent back"),
        (functools.partial(print, 1), "only functions written with def or lambda"),
        (len, "only functions written with def or lambda"),
        (types.SimpleNamespace(), "only functions written with def or lambda"),
        (bare, "it is decorated already; change its options with .options"),
        ("h100", "options go by name, as in gpu='h100:8'"),
        ({"gpu": "h100"}, "options go by name"),
    ],
)
def test_what_cannot_run_on_a_node_is_refused_with_the_reason(thing: Any, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        app.function(thing)
    assert why in str(caught.value)


# In a comprehension of a module, these are no functions in a function.
IN_COMPREHENSIONS = [*[lambda: 1 for _ in "x"], *{name: lambda: 1 for name in "x"}.values()]


@pytest.mark.parametrize("function", IN_COMPREHENSIONS, ids=["list", "dict"])
def test_lambdas_in_comprehensions_are_fine(function: Any) -> None:
    assert "<lambda>" in str(app.function(function))


def test_functions_in_functions_are_fine() -> None:
    def outer() -> Function[[], int]:
        seven = 7

        @app.function
        def inner() -> int:
            return seven

        return inner

    assert outer()() == 7


def test_options_are_checked_at_decoration() -> None:
    with pytest.raises(SpecError) as caught:

        @app.function(gpu="notagpu", num_instance=2)  # type: ignore[call-overload, untyped-decorator]
        def wrong() -> None: ...

    first, second = str(caught.value).splitlines()
    assert first.startswith("@app.function on ")
    assert "gpu: 'notagpu' is not a GPU" in first
    assert second.endswith("num_instance: unknown option; did you mean 'num_instances'?")


def test_a_command_is_no_option_of_a_function() -> None:
    with pytest.raises(SpecError, match="command: a function is its own command"):
        app.function(command="ls")(lambda: None)  # type: ignore[call-overload]


def test_defaults_of_an_app_are_checked_and_used() -> None:
    with pytest.raises(SpecError, match="FlowApp: gpu: 'x' is not a GPU"):
        FlowApp(gpu="x")
    with pytest.raises(SpecError, match="FlowApp: name: 'a b' is not allowed"):
        FlowApp("a b")
    own = FlowApp("digits", provider="slurm", num_instances=3, environment={"A": "1"})

    @own.function(gpu="h100", environment={"B": "2"})
    def train_it() -> None: ...

    config = train_it.build_task_config()
    assert config.name == "digits-train-it"
    assert config.provider == "slurm"
    assert config.num_instances == 3
    assert config.environment == {"A": "1", "B": "2"}
    assert (
        repr(own) == "FlowApp('digits', num_instances=3, environment={'A': '1'}, provider='slurm')"
    )


def test_options_stack_and_leave_the_first_function_alone() -> None:
    first = train.options(num_instances=2, environment={"A": "1"}, max_cost=5)
    second = first.options(environment={"B": "2"}, max_cost=None, gpu=None)
    config = second.build_task_config()
    assert config.environment == {"A": "1", "B": "2"}
    assert (config.num_instances, config.max_cost, config.gpu) == (2, None, None)
    assert second.options(environment=None).build_task_config().environment == {}
    assert train.build_task_config().num_instances == 4
    assert train.build_task_config().environment == {}
    assert second(3.0) == 3.0
    with pytest.raises(SpecError, match="did you mean 'num_instances'"):
        train.options(num_instance=2)  # type: ignore[call-arg]


def test_the_decorators_mapping_is_not_changed_from_outside() -> None:
    environment = {"A": "1"}
    f = app.function(environment=environment)(lambda: None)
    environment["A"] = "2"
    environment["RANK"] = "0"
    assert f.build_task_config().environment == {"A": "1"}


EDITED = """
from flowlite import FlowApp

app = FlowApp()

@app.function(num_instances={nodes}, environment={{"A": "1"}})
def fit(lr: float) -> str:
    \"\"\"The docstring of {version}.\"\"\"
    return "{version}"
"""


def test_a_function_whose_module_is_loaded_again_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As autoreload does in a notebook, where `from train import train` stands in a cell that is not run again."""
    file = tmp_path / "edited_module.py"
    file.write_text(EDITED.format(nodes=2, version="first"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("edited_module")
    try:
        fit = module.fit
        larger = fit.options(num_instances=5)
        file.write_text(EDITED.format(nodes=3, version="second"))
        assert fit(0.1) == "first", "an edit alone changes nothing here"
        importlib.reload(module)
        for function, nodes in ((fit, 3), (larger, 5), (fit.options(max_cost=1), 3)):
            config = function.build_task_config(0.1)
            assert config.num_instances == nodes
            assert config.environment == {"A": "1"}
            assert config.call.function is module.fit.__wrapped__
            assert function(0.1) == "second"
        assert fit.__doc__ == "The docstring of second."
        file.write_text("")
        vars(module).clear()
        vars(module)["__name__"] = "edited_module"
        importlib.reload(module)
        assert fit(0.1) == "second", "it is not in the module any more"
    finally:
        del sys.modules["edited_module"]
    assert fit(0.1) == "second"


# Configurations


def test_a_configuration_keeps_its_call() -> None:
    config = train.build_task_config(0.5, steps=3)
    assert isinstance(config, TaskConfig)
    assert config.call is not None
    assert config.call.function(*config.call.args, **config.call.kwargs) == 1.5
    assert config.name == "train"
    assert config.gpu == "h100:8"


def test_the_guides_spelling() -> None:
    config = train._build_task_config("")
    assert config.call is not None
    assert (config.call.args, dict(config.call.kwargs), config.command) == ((), {}, None)
    assert train._build_task_config().call == config.call
    assert train._build_task_config(command="nvidia-smi").command == "nvidia-smi"
    assert train._build_task_config(command="nvidia-smi").call is None


def test_names_of_tasks() -> None:
    assert app.function(lambda: None).build_task_config().name == "lambda"
    assert app.function(name="mine")(lambda: None).build_task_config().name == "mine"

    def _été_() -> None: ...

    assert app.function(_été_).build_task_config().name == "t"


def test_wrong_calls_are_refused_naming_the_signature() -> None:
    for call in (
        lambda: train.build_task_config(1, 2),  # type: ignore[call-arg]
        lambda: train.spawn(step=2),  # type: ignore[call-arg]
        lambda: train.remote(1, lr=2),  # type: ignore[misc]
        lambda: bare.remote(),  # type: ignore[call-arg]
        lambda: bare._build_task_config(""),
        lambda: bare.map([1], max_concurrent=0),
        lambda: bare.starmap([(1,), (1, 2)]),
    ):
        with pytest.raises(ValueError, match=r"lr|x|max_concurrent") as caught:
            call()
        assert not isinstance(caught.value.__cause__, NotImplementedError)
    with pytest.raises(TypeError, match=r"lr: 'float' = 0\.0001|lr: float = 0\.0001"):
        train.spawn(step=2)  # type: ignore[call-arg]


# Travelling


def test_a_function_pickles_by_name_where_the_name_leads_back() -> None:
    assert pickle.loads(pickle.dumps(train)) is train
    assert cloudpickle.loads(cloudpickle.dumps(train)) is train


def test_a_pool_of_processes_takes_remote() -> None:
    for method in (pickle.loads(pickle.dumps(train.remote)), copy.copy(train.remote)):
        assert method.__wrapped__ is train.__wrapped__
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert list(pool.map(repr, [train.remote])) == [repr(train.remote)]


def test_a_function_pickles_by_value_otherwise() -> None:
    changed = train.options(num_instances=2)
    back = cloudpickle.loads(cloudpickle.dumps(changed))
    assert back(2.0) == 2.0
    assert back.build_task_config().num_instances == 2
    factor = 3
    inner = app.function(gpu="h100")(lambda x: factor * x)
    back = cloudpickle.loads(cloudpickle.dumps(inner))
    assert back(2) == 6
    assert back.build_task_config(1).gpu == "h100"


def test_a_function_that_refers_to_itself_and_its_app(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys, cloudpickle
from flowlite import FlowApp
app = FlowApp("x", gpu="h100")

@app.function(num_instances=2)
def count(n: int) -> list:
    return [app.name, *([n, *count(n - 1)[1:]] if n else [])]

sys.stdout.buffer.write(cloudpickle.dumps(count))
"""
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    pickled = subprocess.run(
        [sys.executable, script], capture_output=True, check=True, env=environment
    ).stdout
    count = cloudpickle.loads(pickled)
    assert count(2) == ["x", 2, 1]
    assert count.build_task_config(1).num_instances == 2


# On a node


def test_nothing_is_checked_again_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_TASK_ID", "t1")
    code = (
        "import sys; from flowlite import FlowApp; app = FlowApp('x', gpu='h100');"
        "f = app.function(num_instances=2)(lambda x: x); assert f(1) == 1; f.options(gpu='h200');"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
