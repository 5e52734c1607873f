"""Calls travel by value and by reference, as they were when submitted, or with an error that names the culprit."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.call import Bundle, build_bundle
from flowlite.errors import ArgumentError, BundleError, BundleWarning, StoreError
from flowlite.node.serialization.envelope import open_envelope
from flowlite.node.worker import load_call as node_call
from tests.bundle.conftest import Node, Project

Build = Callable[..., Bundle]


def in_main(text: str, **more: Any) -> dict[str, Any]:
    """The names of a script that was run as `__main__` (and is not the program that runs the tests)."""
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__, **more}
    exec(compile(text, "<script>", "exec"), names)
    return names


def function_of(bundle: Bundle) -> Any:
    """The module and the name that the function is sent by; None if its own code is in the pickle."""
    return open_envelope(bundle.path, sha256=bundle.sha256).header["function"]


def run_here(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load and run a call in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return node_call.load_call(bundle.call_config(str(bundle.path.parent))).run()


# By value


def test_a_script_s_function_travels_with_what_it_uses(build: Build, node: Node) -> None:
    names = in_main("""
SCALE = 10

class Box:
    def __init__(self, x): self.x = x

def helper(x): return x * SCALE

def train(x, *, y=1):
    import os
    return [helper(x) + y, Box(5), type(Box(1)).__module__, os.getcwd()]
""")
    bundle = build(names["train"], 3, y=4)
    assert function_of(bundle) is None
    assert bundle.sources == ()
    number, box, module, directory = node.run(bundle).unwrap()
    assert number == 34
    assert module == "__main__"
    assert isinstance(box, names["Box"])
    assert directory == str(node.directory)


def test_lambdas_closures_and_local_functions(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = [1, 2]

    def local(x: int) -> int:
        return len(seed) + x

    assert run_here(build(lambda x: x + 1, 1), monkeypatch) == 2
    assert run_here(build(local, 5), monkeypatch) == 7
    assert run_here(build(functools.partial(local, 6)), monkeypatch) == 8
    assert run_here(build(len, "abc"), monkeypatch) == 3
    assert run_here(build([3, 1].index, 1), monkeypatch) == 1


def test_coroutines_are_run(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> int:
        return 5

    assert run_here(build(wait), monkeypatch) == 5


class Decorated:
    """As flowlite's `Function`."""

    __flowlite_function__ = True

    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        return self.__wrapped__(*args)  # type: ignore[attr-defined]

    def local(self, *args: Any) -> Any:
        return self(*args)


def test_decorated_functions_call_each_other_and_themselves(build: Build, node: Node) -> None:
    names = in_main(
        """
@function
def twice(x): return 2 * x

@function
def factorial(n):
    return 1 if n < 2 else n * factorial.local(n - 1)

@function
def train(n): return twice(factorial(n)), twice.local(1)
""",
        function=Decorated,
    )
    assert node.run(build(names["train"], 5)).unwrap() == (240, 2)
    assert node.run(build(names["factorial"], 4)).unwrap() == 24


def test_source_lines_travel_for_tracebacks_and_inspect(
    build: Build, node: Node, project: Project
) -> None:
    script = project.write(
        "script.py",
        """
        import inspect
        def train():
            if "# a line" + " of its own" not in inspect.getsource(train):
                return "no source"
            raise ValueError("on the node")  # a line of its own
        """,
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    bundle = build(names["train"])
    script.write_text("# nothing is left\n" * 10)
    outcome = node.run(bundle)
    assert "# a line of its own" in str(outcome.exception.__cause__)  # type: ignore[union-attr]
    assert node.failure == {"kind": "exception", "type": "ValueError", "message": "on the node"}


def test_a_module_that_nobody_can_import_travels_by_value(
    build: Build, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("made_up_module")
    exec(
        "class Thing: x = 5\ndef helper(): return Thing().x\ndef train(): return helper()",
        vars(module),
    )
    monkeypatch.setitem(sys.modules, "made_up_module", module)
    import cloudpickle

    bundle = build(module.train)
    assert function_of(bundle) is None
    assert node.run(bundle).unwrap() == 5
    assert node.run(build(lambda thing: thing.x, module.Thing())).unwrap() == 5
    assert not cloudpickle.cloudpickle.list_registry_pickle_by_value()


# By reference


def test_a_project_function_is_imported_from_the_snapshot(
    build: Build, node: Node, project: Project
) -> None:
    project.write("helper.py", "def value(): return 'submitted'\n")
    project.write("lazy.py", "WORD = 'lazy'\n")
    project.write("pack/__init__.py", "")
    project.write("pack/inner/deep.py", "from ..top import NAME\n")
    project.write("pack/top.py", "NAME = 'deep'\n")
    project.write("pack/data.txt", "data")
    project.write(
        "work.py",
        """
        import threading
        from helper import value
        LOCK = threading.Lock()
        def train(x):
            import lazy
            from pack.inner.deep import NAME
            from importlib.resources import files
            with LOCK:
                return [x, value(), lazy.WORD, NAME, files("pack").joinpath("data.txt").read_text(), __file__]
        """,
    )
    work = importlib.import_module("work")
    bundle = build(work.train, "x")
    assert function_of(bundle) is not None
    for path in project.root.rglob("*"):
        if path.is_file():
            path.write_text("raise RuntimeError('edited after submission')")
    *values, file = node.run(bundle).unwrap()
    assert values == ["x", "submitted", "lazy", "deep", "data"]
    assert file.startswith(str(node.directory))


def test_a_decorated_function_is_taken_out_of_its_decorator(
    build: Build, node: Node, project: Project
) -> None:
    project.write(
        "shop.py",
        """
        import functools, threading
        class Function:
            __flowlite_function__ = True
            def __init__(self, fn):
                functools.update_wrapper(self, fn)
                self.lock = threading.Lock()
            def __call__(self, *args): raise RuntimeError("a task within the task")
            def local(self, *args): return self.__wrapped__(*args)
        lock = threading.Lock()
        @Function
        def train(x):
            with lock: return other.local(x) + 1
        @Function
        def other(x): return x * 10
        class Trainer:
            @staticmethod
            @Function
            def fit(x): return x + 100
        """,
    )
    shop = importlib.import_module("shop")
    for fn in (shop.train, shop.train.__wrapped__):
        bundle = build(fn, 4)
        assert function_of(bundle) is not None
        assert node.run(bundle).unwrap() == 41
    assert node.run(build(shop.Trainer.fit, 1)).unwrap() == 101
    # Captured by a function that travels by value, it is what its module holds.
    train = shop.train
    assert node.run(build(lambda x: train.local(x), 4)).unwrap() == 41


def test_a_script_s_function_finds_the_modules_beside_it(
    build: Build, node: Node, project: Project
) -> None:
    project.write("model.py", "import layers\nclass Net:\n    size = layers.SIZE\n")
    project.write("layers.py", "SIZE = 7\n")
    project.write("late.py", "WORD = 'late'\n")
    names = in_main("""
from model import Net
def train():
    import late
    return Net.size, late.WORD
""")
    bundle = build(names["train"])
    assert function_of(bundle) is None
    assert node.run(bundle).unwrap() == (7, "late")


def test_a_module_that_breaks_on_the_node_is_a_load_failure(
    build: Build, node: Node, project: Project
) -> None:
    project.write("ok.py", "def train(): return 1\n")
    ok = importlib.import_module("ok")
    project.write("ok.py", "import missing_package_xyz\ndef train(): return 1\n")
    outcome = node.run(build(ok.train))
    assert outcome.kind == "load"
    assert node.failure["kind"] == "load"
    assert "no module 'missing_package_xyz' on this node" in str(outcome.exception)
    assert "ok.py" in str(outcome.exception.__cause__)  # type: ignore[union-attr]


# What is checked on the node


def test_another_bundle_is_refused_before_anything_is_loaded(build: Build, node: Node) -> None:
    trace = node.directory / "trace"

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (trace,)

    bundle = build(lambda x: x, Bomb())
    outcome = node.run(bundle, sha256="0" * 64)
    assert outcome.kind == "load"
    assert "not the file that was sent" in node.failure["message"]
    assert not trace.exists()


def test_another_source_is_refused(build: Build, node: Node, project: Project) -> None:
    project.write("ok.py", "def train(): return 1\n")
    bundle = build(importlib.import_module("ok").train)
    source = bundle.call_config(str(node.directory))["source"]
    outcome = node.run(bundle, source=[{**source[0], "sha256": "0" * 64}])
    assert outcome.kind == "load"
    assert "not the file that was sent" in node.failure["message"]
    assert not list(node.directory.glob("source-*/"))


def test_another_python_is_refused_before_unpickling(
    build: Build, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flowlite.bundle.call as module

    fake = types.SimpleNamespace(version_info=(3, 99, 0), modules=sys.modules, path=sys.path)
    monkeypatch.setattr(module, "sys", fake)
    bundle = build(lambda: 1)
    monkeypatch.undo()
    assert node.run(bundle).kind == "load"
    assert "made with Python 3.99, and this node runs Python 3." in node.failure["message"]


def test_an_exit_passes_through(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = build(sys.exit, 42)
    config = bundle.call_config(str(bundle.path.parent))
    with pytest.raises(SystemExit) as caught:
        node_call.run_call(config, bundle.path.parent / "r", node=0, rank=0)
    assert caught.value.code == 42


def test_a_forked_worker_does_not_hash_again(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = build(lambda x: len(x), "x" * 1000)
    config = bundle.call_config(str(bundle.path.parent))
    node_call.prepare_call(config)
    import hashlib

    monkeypatch.setattr(hashlib, "sha256", None)
    assert node_call.load_call(config).run() == 1000


# Errors before anything is written


class Connection:
    def __init__(self) -> None:
        self.inner = {"sockets": [1, threading.Lock()]}


connection = Connection()
lock = threading.Lock()


def uses_global() -> Any:
    return connection


def takes(a: Any = None, *rest: Any, b: Any = None, **more: Any) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((threading.Lock(),), {}, "argument 'a' cannot be sent to a node: it is a _thread.lock"),
        ((), {"b": (i for i in ())}, "argument 'b' cannot be sent to a node: it is a generator"),
        (
            (1, 2, threading.Lock()),
            {},
            "argument 'rest' cannot be sent to a node: rest[1] is a _thread.lock",
        ),
        ((), {"x": threading.Lock()}, "argument 'more' cannot be sent to a node: more['x'] is"),
        (
            ({"db": connection},),
            {},
            "argument 'a' cannot be sent to a node: a['db'].inner['sockets'][1] is a _thread.lock",
        ),
    ],
)
def test_the_argument_at_fault_is_named(args: Any, kwargs: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        build_bundle(takes, args, kwargs, directory=tmp_path / "b")
    assert says in str(caught.value)
    assert "cannot pickle" in str(caught.value)
    assert not (tmp_path / "b").exists()


def test_the_captured_variable_at_fault_is_named(build: Build) -> None:
    held = threading.Lock()
    names = in_main("""
def uses(): return connection
def calls(): return uses()
def default(c=connection): return 1
class Model:
    lock = connection
def makes(): return Model()
""", connection=connection)  # fmt: skip
    place = "connection.inner['sockets'][1] is a _thread.lock"
    for function, variable, of in (
        ("uses", "connection", "uses"),
        ("calls", "connection", "uses"),
        ("default", "c", "default"),
    ):
        with pytest.raises(BundleError) as caught:
            build(names[function])
        assert f"captured variable {variable!r} of {of} cannot be sent" in str(caught.value)
        assert place.replace("connection", variable, 1) in str(caught.value)
    with pytest.raises(
        BundleError, match=r"captured variable 'Model' of makes .*Model\.lock\.inner"
    ):
        build(names["makes"])
    with pytest.raises(BundleError, match="captured variable 'held' of <lambda> cannot be sent"):
        build(lambda: held)


@pytest.mark.slow
def test_a_function_that_its_decorator_keeps_here_is_named(build: Build) -> None:
    """And not the state of torch or functools that cannot be pickled, which the user never saw."""
    torch = pytest.importorskip("torch")

    @torch.compile
    def step(x: Any) -> Any:
        return x + 1

    @functools.singledispatch
    def shown(x: Any) -> str:
        return str(x)

    class Model:
        @functools.singledispatchmethod
        def shown(self, x: Any) -> str:
            return str(x)

    with pytest.raises(BundleError) as refused:
        build(lambda: step(1))
    assert "captured variable 'step' of <lambda>" in str(refused.value)
    assert "step is a function made by torch.compile" in str(refused.value)
    assert "define it in a module of your project" in str(refused.value)
    with pytest.raises(BundleError, match="shown is a function made by functools"):
        build(lambda: shown(1))
    with pytest.raises(BundleError, match=r"Model\.shown\.dispatcher is a function made by"):
        build(lambda: Model().shown(1))


def test_what_an_importable_module_holds_is_no_capture(build: Build) -> None:
    # Its module is imported on the node, where it makes its own connection.
    assert function_of(build(uses_global)) is not None


def test_wrong_arguments_come_before_everything(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="too many positional"):
        build_bundle(uses_global, (lock,), {}, directory=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_an_endless_structure_is_an_error(build: Build) -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BundleError, match="argument 'a' cannot be sent"):
        build(takes, value)
    while value:
        value = value.pop()


@pytest.mark.parametrize("place", ["file", "missing"])
def test_a_directory_that_cannot_be_written_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "b" if place == "missing" else tmp_path / "file"
    with pytest.raises(StoreError, match=str(target)):
        build_bundle(len, ("a",), {}, directory=target)


def test_a_disk_that_fills_up_leaves_nothing(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flowlite.bundle.call as module

    project.write("ok.py", "def train(): return 1\n")

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_envelope", full)
    with pytest.raises(StoreError, match="No space left on device"):
        build_bundle(importlib.import_module("ok").train, (), {}, directory=tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []


# Size


def test_an_open_file_is_refused_and_standard_output_is_not(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.txt").write_text("x")
    with (tmp_path / "data.txt").open() as opened, pytest.raises(BundleError) as refused:
        build(lambda file: file.read(), opened)
    assert "argument 'file' cannot be sent to a node" in str(refused.value)
    assert "pass the path, and open it inside the function" in str(refused.value)
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    build(lambda to: print("x", file=to), sys.stdout)


LARGE = """\
from flowlite import FlowApp

app = FlowApp()
OF_THE_FILE = b"x" * 20_000_000


@app.function()
def large() -> int:
    return len(DATA) + len(OF_THE_FILE)


if __name__ == "__main__":
    DATA = b"x" * 20_000_000
    print(large.remote())
"""


def test_a_large_variable_of_the_program_is_warned_about_where_it_is_called(
    flow_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    done = subprocess.run(
        [sys.executable, "large.py"],
        cwd=tmp_path,
        env={**os.environ, "FLOW_HOME": str(flow_home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "40000000\n", done.stderr
    (warning,) = (line for line in done.stderr.splitlines() if "BundleWarning" in line)
    assert "large.py:14: BundleWarning: captured variable 'DATA' of large is 20 MB" in warning


def test_a_large_capture_is_warned_about_by_name(build: Build) -> None:
    np = pytest.importorskip("numpy")
    weights = np.zeros(1_500_000)
    small = np.zeros(1000)

    def uses() -> Any:
        return weights.sum() + small.sum()

    with pytest.warns(
        BundleWarning, match="captured variable 'weights' of uses is 12 MB"
    ) as caught:
        build(lambda: uses())
    assert len(caught) == 1
    assert issubclass(BundleWarning, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(lambda a: a, weights)
        build(lambda: small)


def test_arrays_are_neither_copied_nor_read_only(build: Build) -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(1_000_000)
    bundle = build(lambda a: a, array)
    found = node_call.load_call(bundle.call_config(str(bundle.path.parent))).args[0]
    assert bundle.path.stat().st_size < array.nbytes + 100_000
    assert (found == array).all()
    found[0] = 5
    assert not found.flags.owndata


def test_tensors_keep_their_memory_shared(build: Build, node: Node) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(100_000, dtype=torch.bfloat16)
    layer = torch.nn.Linear(200, 200)
    layer.twin = layer.weight
    sparse = torch.eye(3).to_sparse()

    def look(a: Any, b: Any, layer: Any, sparse: Any) -> Any:
        b[0] = 3
        assert a[10] == 3
        assert layer.twin is layer.weight
        assert layer.weight.requires_grad
        assert sparse.is_sparse
        return a[:20].clone(), type(layer.weight).__name__

    bundle = build(look, base, base[10:], layer, sparse)
    assert bundle.path.stat().st_size < 200_000 + 4 * 40_200 + 100_000
    found, kind = node.run(bundle).unwrap()
    assert found.dtype == torch.bfloat16
    assert found[10] == 3
    assert kind == "Parameter"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_several_lengths_travel(build: Build, node: Node) -> None:
    torch = pytest.importorskip("torch")
    nested = torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)])

    def longer(nested: Any) -> Any:
        return torch.nested.nested_tensor([part + 1 for part in nested.unbind()])

    found = node.run(build(longer, nested)).unwrap()
    assert [part.tolist() for part in found.unbind()] == [[1, 2], [1, 2, 3]]


def test_threads_can_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_up_module")
    exec("def train(x): return x * 2", vars(module))
    monkeypatch.setitem(sys.modules, "made_up_module", module)
    results: dict[int, Any] = {}

    def one(number: int) -> None:
        directory = tmp_path / str(number)
        bundle = build_bundle(module.train, (number,), {}, directory=directory)
        results[number] = node_call.load_call(bundle.call_config(str(directory))).run()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number * 2 for number in range(8)}


_MEASURED = """
import json, resource, sys
from pathlib import Path
import numpy as np
from flowlite.bundle.call import build_bundle
from flowlite.node.worker import load_call as call; from flowlite.node.serialization import result_file as outcome

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform == "linux" else 1)

what, directory = sys.argv[1], Path(sys.argv[2])
if what in ("call", "result"):
    array = np.ones(40_000_000)
before = peak()
if what == "call":
    built = build_bundle(len, (array,), {}, directory=directory)
    (directory / "call.json").write_text(json.dumps(built.call_config(str(directory))))
elif what == "result":
    outcome.write_value(directory / "r", array)
elif what == "load call":
    found = call.load_call(json.loads((directory / "call.json").read_text())).args[0]
    found += 1
else:
    found = outcome.read_outcome(directory / "r", allow_pickle=True).value
    found += 1
print(peak() - before)
"""


@pytest.mark.slow
def test_large_arrays_are_not_held_twice(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    size = 40_000_000 * 8
    for what, most in (("call", 0.3), ("load call", 1.3), ("result", 0.3), ("load result", 1.3)):
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, what, str(tmp_path)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) <= most * size, what
