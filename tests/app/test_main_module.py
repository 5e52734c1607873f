"""The main module of workers: what of a started program they have, what is laid over it, and what errors say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import cloudpickle
import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120
IMPORTS = """\
import json, os, sys
from flowlite import FlowApp
app = FlowApp()
"""

pytestmark = [pytest.mark.usefixtures("flow_home"), pytest.mark.timeout(2 * SECONDS)]


def start(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(str(each) for each in words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLOW_SHOW_LOGS": "never"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def printed(*words: object, cwd: Path) -> Any:
    """What a program prints, as JSON."""
    done = start(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def write(directory: Path, text: str, name: str = "x.py") -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(IMPORTS + dedent(text))
    return path


def test_what_changed_after_the_guard_is_sent_and_nothing_else(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        rate, seen, options, count = 1, [], {"a": 1}, 1
        task = os.environ.get("FLOW_TASK_ID")

        class Settings:
            depth = 1

        class Counter:
            def step(self):
                global count
                count += 1

        counter = Counter()

        def scale(x):
            return rate * x

        def main():
            global rate
            rate = 7
            options["a"] = 2
            seen.append("main")
            Settings.depth = 3
            counter.step()
            late = 5
            return f.remote(late)

        @app.function
        def f(late):
            return scale(1), options, seen, Settings.depth, count, late, later, task is not None

        if __name__ == "__main__":
            later = "under the guard"
            print(json.dumps(main()))
        """,
    )
    assert printed(path, cwd=tmp_path) == [
        7,
        {"a": 2},
        ["main"],
        3,
        2,
        5,
        "under the guard",
        True,
    ]


def test_what_is_defined_under_the_guard_is_sent_by_value(tmp_path: Path) -> None:
    """Python 3.11 keeps code under a false `if` as constants of a module, unless no constant after it is needed.

    The `None` that a module returns is one, unless the file has a plain `import`.
    """
    path = tmp_path / "x.py"
    path.write_text(
        dedent(
            """
            from flowlite import FlowApp
            app = FlowApp()

            @app.function
            def top(value):
                return value.double()

            if __name__ == "__main__":
                class Pair:
                    def __init__(self, first):
                        self.first = first

                    def double(self):
                        return 2 * self.first

                def helper(x):
                    return x + 1

                @app.function
                def late(x):
                    return helper(x)

                print([late.remote(3), top.remote(Pair(5))])
            """
        )
    )
    assert printed(path, cwd=tmp_path) == [4, 10]


def test_what_decorated_functions_use_is_sent(tmp_path: Path) -> None:
    """What the guard sets, such as `args = parser.parse_args()`, also under `@torch.no_grad()` and its like."""
    (tmp_path / "decorators.py").write_text(
        dedent(
            """
            import functools

            def named(f):
                @functools.wraps(f)
                def run(*values):
                    return f(*values)
                return run

            def bare(f):
                return lambda *values: f(*values)

            class Task:
                def __init__(self, f):
                    self.f = f

                def __call__(self):
                    return self.f()
            """
        )
    )
    path = write(
        tmp_path,
        """
        import contextlib, functools
        from decorators import Task, bare, named

        def own(f):
            def run():
                return f()
            return run

        def plain():
            return part_of

        part = functools.partial(plain)

        @functools.cache
        def cached():
            return of_cache

        @named
        def wrapped():
            return of_wrapped

        @named
        @functools.cache
        @named
        @named
        @named
        def deep():
            return of_deep

        @bare
        def unnamed():
            return of_unnamed

        @own
        def local():
            return of_local

        @Task
        def instance():
            return of_instance

        @contextlib.contextmanager
        def context():
            yield of_context

        @functools.singledispatch
        def dispatched(x):
            return None

        @dispatched.register
        def _(x: int):
            return of_dispatched

        class Model:
            @functools.cache
            def cached(self):
                return of_method

            @named
            def wrapped(self):
                return of_wrapped_method

            @staticmethod
            @named
            def static():
                return of_static

        bound = Model().wrapped

        def callback():
            return of_callback

        class Loss:
            def value(self):
                return of_loss

        class Keyed(type):
            def __getitem__(cls, key):
                return of_metaclass

        class Outer(metaclass=Keyed):
            class Inner:
                def value(self):
                    return of_inner

        class Trainer:
            def __init__(self, loss, *callbacks):
                self.loss, self.callbacks = loss, callbacks

            def run(self):
                return [self.loss.value(), *(each() for each in self.callbacks)]

        trainer = Trainer(Loss(), callback)

        @app.function
        def f():
            with context() as inside:
                values = [part(), cached(), wrapped(), deep(), unnamed(), local(), instance(), inside, dispatched(1)]
            return [*values, Model().cached(), bound(), Model.static(), *trainer.run(), Outer[0], Outer.Inner().value()]

        if __name__ == "__main__":
            part_of, of_cache, of_wrapped, of_deep, of_unnamed, of_local = range(6)
            of_instance, of_context, of_dispatched, of_method, of_wrapped_method, of_static = range(6, 12)
            of_loss, of_callback, of_metaclass, of_inner = range(12, 16)
            print(json.dumps(f.remote()))
        """,
    )
    assert printed(path, cwd=tmp_path) == list(range(16))


def test_cached_functions_travel_as_arguments(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(
        IMPORTS + "@app.function\ndef call(functions): return [each(3) for each in functions]\n"
    )
    path = write(
        tmp_path,
        """
        import functools
        from elsewhere import call

        @functools.cache
        def twice(x):
            return 2 * x

        if __name__ == "__main__":
            @functools.lru_cache(maxsize=5)
            def thrice(x):
                return 3 * x

            print(json.dumps(call.remote([twice, thrice])))
        """,
    )
    assert printed(path, cwd=tmp_path) == [6, 9]


def test_a_cached_function_of_a_program_without_a_file(tmp_path: Path) -> None:
    text = IMPORTS + dedent(
        """
        import functools, pickle

        @functools.lru_cache(maxsize=50)
        def sum_up(n):
            return n and n + sum_up(n - 1)

        @app.function
        def f():
            return sum_up(10), sum_up.cache_info()[1:], pickle.loads(pickle.dumps(sum_up)) is sum_up

        print(json.dumps(f.remote()))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [55, [11, 50, 11], True]


def test_new_types_and_parameters_of_decorators_without_a_file(tmp_path: Path) -> None:
    text = IMPORTS + dedent(
        """
        import functools, pickle, typing

        Id = typing.NewType("Id", int)
        Given = typing.ParamSpec("Given")
        Several = typing.TypeVarTuple("Several")

        def timed(f: typing.Callable[Given, int]) -> typing.Callable[Given, int]:
            def run(*values: Given.args, **named: Given.kwargs) -> int:
                return f(*values, **named)
            return run

        def all_of(*values: *Several) -> tuple[*Several]:
            return values

        @app.function
        def f(x: Id) -> Id:
            same = pickle.loads(pickle.dumps([Id, Given, Several])) == [Id, Given, Several]
            return timed(lambda: Id(x + 1))(), all_of(x, 2), str([Id, Given, Several]), same

        print(json.dumps(f.remote(1)))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [
        2,
        [1, 2],
        "[__main__.Id, ~Given, Several]",
        True,
    ]


def test_classes_within_a_function_of_a_program_without_a_file(tmp_path: Path) -> None:
    """Their bodies look up global variables otherwise than functions do."""
    text = IMPORTS + dedent(
        """
        import functools
        width, depth = 3, 4

        @app.function
        def f():
            class Settings:
                wide: int = width

                class Inner:
                    deep = depth

                @functools.cache
                def both(self):
                    return self.wide, self.Inner.deep

            return Settings().both()

        print(json.dumps(f.remote()))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [3, 4]


def test_objects_with_slots_of_a_program_without_a_file(tmp_path: Path) -> None:
    """They have no other attributes on a worker, either, and come back."""
    text = IMPORTS + dedent(
        """
        import collections, dataclasses, typing
        T = typing.TypeVar("T")

        @dataclasses.dataclass(slots=True)
        class Point:
            x: int

        class Deep(Point):
            __slots__ = ("__hidden", "__weakref__")

            def __init__(self, x):
                super().__init__(x)
                self.__hidden = x + 1

            def hidden(self):
                return self.__hidden

        class Box(typing.Generic[T]):
            __slots__ = {"held": "what is in it"}

        class Pair(typing.NamedTuple):
            a: int

        Other = collections.namedtuple("Other", "b")

        @app.function
        def f(deep, pair, other):
            box = Box()
            box.held = deep.hidden()
            made = Point(deep.x), Deep(deep.x), box, Pair(pair.a), Other(other.b), deep
            return made, [hasattr(each, "__dict__") for each in made]

        (point, deep, box, pair, other, same), dicts = f.remote(Deep(1), Pair(2), Other(3))
        classes = [type(each) for each in (point, deep, box, pair, other, same)]
        assert classes == [Point, Deep, Box, Pair, Other, Deep], classes
        print(json.dumps([point.x, deep.x, deep.hidden(), box.held, pair.a, other.b, same.hidden(), any(dicts)]))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [1, 1, 2, 2, 2, 3, 2, False]


def test_dataclasses_and_typed_dicts_of_a_program_without_a_file(tmp_path: Path) -> None:
    """Parsers of configurations look whether a field has a default, and so does a class that extends it."""
    text = IMPORTS + dedent(
        """
        import dataclasses, typing

        @dataclasses.dataclass
        class Config:
            lr: float
            steps: int = 3

        class Metrics(typing.TypedDict):
            loss: float

        class More(Metrics, total=False):
            step: int

        Given = typing.TypedDict("Given", {"a-b": int})

        @app.function
        def f(given: Given) -> More:
            @dataclasses.dataclass
            class Longer(Config):
                warmup: int = 1

            required = [each.default is dataclasses.MISSING for each in dataclasses.fields(Config)]
            hints = sorted(typing.get_type_hints(More)), sorted(More.__required_keys__)
            return required, dataclasses.astuple(Longer(0.1)), More(loss=0.5, step=given["a-b"]), hints

        print(json.dumps(f.remote({"a-b": 4})))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [
        [True, False],
        [0.1, 3, 1],
        {"loss": 0.5, "step": 4},
        [["loss", "step"], ["loss"]],
    ]


def test_enumerations_of_a_program_without_a_file(tmp_path: Path) -> None:
    """With aliases, with what `__init__` and `__new__` give their members, and back to the same members."""
    text = IMPORTS + dedent(
        """
        import enum

        class Planet(enum.Enum):
            EARTH = (6, 3)
            def __init__(self, mass, radius):
                self.mass, self.radius = mass, radius
            def density(self):
                return self.mass / self.radius

        class Labelled(enum.Enum):
            A = (1, "one")
            SAME = (1, "other")
            def __new__(cls, value, label):
                made = object.__new__(cls)
                made._value_, made.label = value, label
                return made

        class Right(enum.Flag):
            READ = 1
            WRITE = 2
            BOTH = READ | WRITE

        @app.function
        def f(planet, labelled, right):
            there = planet.density(), labelled.label, Labelled["SAME"] is labelled, right is Right.BOTH
            return there, (planet, labelled, right, Right.READ)

        there, back = f.remote(Planet.EARTH, Labelled.A, Right.BOTH)
        same = [a is b for a, b in zip(back, (Planet.EARTH, Labelled.SAME, Right.BOTH, Right.READ))]
        print(json.dumps([there, same]))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [[2.0, "one", True, True], [True] * 4]


def test_enumerations_of_bytes_and_numbers_with_other_values(tmp_path: Path) -> None:
    text = IMPORTS + dedent(
        """
        import enum

        class Opcode(bytes, enum.Enum):
            LOAD = (7, "load")
            SAVE = (9, "save")
            SAME = (9, "save")
            def __new__(cls, code, label):
                made = bytes.__new__(cls, [code])
                made._value_, made.label = label, label
                return made

        class Size(int, enum.Enum):
            SMALL = 1
            LARGE = 2
            def __new__(cls, order):
                made = int.__new__(cls, 1000 * order)
                made._value_ = order
                return made

        @app.function
        def f(opcode, size):
            found = [[list(bytes(each)), each.value, each.label, Opcode(each.value) is each] for each in Opcode]
            return found, [int(each) for each in Size], Size(2) is size, len(Opcode), (opcode, size)

        *there, (opcode, size) = f.remote(Opcode.SAVE, Size.LARGE)
        print(json.dumps([*there, opcode is Opcode.SAVE, size is Size.LARGE]))
        """
    )
    there = [[[7], "load", "load", True], [[9], "save", "save", True]]
    assert printed("-c", text, cwd=tmp_path) == [there, [1000, 2000], True, 2, True, True]


def test_cached_properties_of_a_program_without_a_file(tmp_path: Path) -> None:
    text = IMPORTS + dedent(
        """
        import functools

        class Settings:
            count = 0

            @functools.cached_property
            def rate(self):
                "How fast."
                self.count += 1
                return 0.5

        @app.function
        def f(settings):
            return settings.rate, settings.rate, settings.count, Settings.rate.__doc__, settings

        *there, back = f.remote(Settings())
        print(json.dumps([there, type(back) is Settings, back.rate, back.count]))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [[0.5, 0.5, 1, "How fast."], True, 0.5, 1]


def test_what_a_worker_changes_of_a_class_does_not_come_back(tmp_path: Path) -> None:
    """Nor is undone what the program has changed meanwhile. A later program gets the class as the worker had it."""
    text = IMPORTS + dedent(
        """
        class Net:
            seen = 0

            def name(self):
                return "old"

        @app.function
        def f():
            Net.seen += 5
            return Net(), Net.seen

        task = f.spawn()
        Net.name = lambda self: "new"
        net, seen = task.result()
        print(json.dumps([type(net) is Net, seen, Net.seen, net.name()]))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [True, 5, 0, "new"]
    later = """
import json
from flowlite import Flow
net, _ = Flow().get_task("f").result()
print(json.dumps([net.name(), type(net).seen, sorted(vars(type(net)))]))
"""
    name, seen, content = printed("-c", later, cwd=tmp_path)
    assert (name, seen) == ("old", 5)
    assert not [each for each in content if "flowlite" in each]


def test_a_typer_command_that_sets_a_global(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        import typer
        cli, rate = typer.Typer(), 1

        @app.function
        def f():
            return rate

        @cli.command()
        def main(to: int):
            global rate
            rate = to
            print(f.remote())

        if __name__ == "__main__":
            cli()
        """,
    )
    assert printed(path, "4", cwd=tmp_path) == 4


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_an_edit_while_it_runs_changes_nothing(tmp_path: Path, change: str) -> None:
    path = write(
        tmp_path,
        """
        import multiprocessing
        from pathlib import Path
        word = "started"

        def say(_):
            return word

        @app.function
        def f():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return [say(0), *pool.map(say, [0])]

        if __name__ == "__main__":
            if sys.argv[1] == "edited":
                Path(__file__).write_text("word = 'edited'; raise SystemExit('edited')")
            else:
                Path(__file__).unlink()
            print(json.dumps(f.remote()))
        """,
    )
    assert printed(path, change, cwd=tmp_path) == ["started", "started"]


def test_a_module_of_a_package_that_was_started_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "helper.py").write_text("WORD = 'beside'\n")
    write(
        tmp_path,
        """
        import multiprocessing
        from . import helper
        from .helper import WORD

        class Point:
            x = 1

        def double(x):
            return 2 * x, helper.WORD, __name__

        @app.function
        def train():
            spec = sys.modules["__main__"].__spec__
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return WORD, Point.__module__, spec.name, __package__, sys.argv[1:], pool.map(double, [2])

        if __name__ == "__main__":
            print(json.dumps(train.remote()))
        """,
        "pkg/train.py",
    )
    assert printed("-m", "pkg.train", "--lr", "3", cwd=tmp_path) == [
        "beside",
        "__main__",
        "pkg.train",
        "pkg",
        ["--lr", "3"],
        [[4, "beside", "__mp_main__"]],
    ]


def test_packages_may_be_in_any_directory(tmp_path: Path) -> None:
    """As one that `pip install --target` has made, which is in `PYTHONPATH`."""
    packages = tmp_path / "packages"
    shutil.copytree(Path(cloudpickle.__file__).parent, packages / "cloudpickle")
    path = write(
        tmp_path,
        """
        @app.function
        def f(x):
            return 2 * x

        if __name__ == "__main__":
            import cloudpickle
            print(json.dumps([f.remote(4), app.function(lambda x: x + 1).remote(4), cloudpickle.__file__]))
        """,
    )
    run = f"import runpy; sys.path.insert(0, {str(packages)!r}); runpy.run_path({str(path)!r}, run_name='__main__')"
    result, of_lambda, where = printed("-c", f"import sys; {run}", cwd=tmp_path)
    assert (result, of_lambda) == (8, 5)
    assert where.startswith(str(packages))


def test_a_program_without_a_file_fills_the_main_module(tmp_path: Path) -> None:
    """Also with what only an annotation of an annotation names."""
    text = IMPORTS + dedent(
        """
        import dataclasses, multiprocessing, typing

        class Inner:
            pass

        @dataclasses.dataclass
        class Outer:
            inner: "Inner"

        @app.function
        def f(x: "Outer" = None):
            names = [each for each in ("Outer", "Inner", "double") if each in vars(sys.modules["__main__"])]
            hints = str(typing.get_type_hints(Outer)) if "Outer" in globals() else ""
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return names, hints, pool.map(double, [1])

        def double(x):
            return 2 * x

        print(json.dumps(f.remote()))
        """
    )
    assert printed("-c", text, cwd=tmp_path) == [
        ["Outer", "Inner", "double"],
        "{'inner': <class '__main__.Inner'>}",
        [2],
    ]


@pytest.mark.parametrize("line", ["if __name__ == '__main__': {}", "__name__ == '__main__' and {}"])
def test_a_guard_on_one_line(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "@app.function\ndef f(): return 5\n" + line.format("print(f.remote())"))
    assert printed(path, cwd=tmp_path) == 5


@pytest.mark.parametrize(
    "call",
    [
        "print(f.remote())",
        "if 1:\n    print(\n        f.remote())",
        "from concurrent.futures import ThreadPoolExecutor as Pool\nlist(Pool(1).map(lambda _: f.remote(), [0]))",
        "def main():\n    f.spawn()\nmain()",
    ],
)
def test_a_call_at_the_top_level_is_refused_before_anything_starts(
    tmp_path: Path, call: str
) -> None:
    path = write(tmp_path, "@app.function\ndef f(): return 5\n" + call)
    done = start(path, cwd=tmp_path)
    line = 5 + len(call.splitlines())
    assert done.returncode == 1
    assert f"BundleError: {path}, line {line}: a task is started at the top level" in done.stderr
    assert "if __name__ ==" in done.stderr.splitlines()[-1]
    assert start("-m", "flowlite.cli", "status", "--json", cwd=tmp_path).stdout.count('"id"') == 0


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("1 / 0", "line 5: ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "line 5: the file ended Python while it was loaded (SystemExit: 3)"),
        ("import no_such_module", "line 5: there is no module 'no_such_module' on this node"),
    ],
)
def test_what_fails_while_the_file_is_loaded_is_named_by_file_and_line(
    tmp_path: Path, there: str, said: str
) -> None:
    path = write(
        tmp_path,
        f"""
        if "FLOW_TASK_ID" in os.environ: {there}

        @app.function
        def f():
            return 5

        if __name__ == "__main__":
            f.remote()
        """,
    )
    done = start(path, cwd=tmp_path)
    assert done.returncode == 1
    assert f"\nflowlite.errors.TaskFailed: {path}, {said}" in done.stderr
    assert "\nraised on node 0, rank 0 of task f" in done.stderr


def test_a_program_may_exit_with_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        import sys

        @app.function
        def f():
            sys.exit("there is no a\\udcff")

        if __name__ == "__main__":
            f.remote()
        """,
    )
    done = start(path, cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no a\\udcff" in done.stderr
    assert "supervisor" not in done.stderr


def test_an_error_of_the_function_shows_the_users_file_and_line(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        def divide(x):
            return x / 0  # the line itself

        @app.function
        def f(x):
            return divide(x)

        if __name__ == "__main__":
            f.remote(1)
        """,
    )
    done = start(path, cwd=tmp_path)
    assert done.returncode == 1
    assert f'File "{path}", line 6, in divide' in done.stderr
    assert "return x / 0  # the line itself" in done.stderr
