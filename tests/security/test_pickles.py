"""A node that sends pickles which run code, read by somebody who allows no pickles: nothing of them is loaded."""

from __future__ import annotations

import ast
import asyncio
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import flowlite
from flowlite.api.sweeps.sweep import in_order
from flowlite.api.task import Ends, Task
from flowlite.errors import RemoteError, ResultUnavailable
from flowlite.node.serialization import pickling, result_file
from flowlite.node.serialization.envelope import write_envelope
from tests.cli.conftest import Flow
from tests.helpers import kill_processes_of_home
from tests.tasks_made_by_hand import HandMade

RANKS = 4


class Poison(Exception):
    """Makes a file when it is loaded. As an exception it can stand wherever one can."""

    def __init__(self, file: Path) -> None:
        super().__init__("harmless")
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        # `os.mkdir` gives None, which is then taken for the value: loading goes on.
        return os.makedirs, (str(self.file), 0o700, True)


class WithPoison(Exception):
    """An exception whose own pickle is sound, but for what it holds."""


def _itself(poison: Poison) -> Any:
    return poison


def _argument(poison: Poison) -> Any:
    return WithPoison("text", {"deep": [poison]})


def _attribute(poison: Poison) -> Any:
    error = WithPoison("text")
    error.extra = poison  # type: ignore[attr-defined]
    return error


def _cause(poison: Poison) -> Any:
    error = WithPoison("text")
    # Pickles of exceptions leave causes out; a hostile node puts them in.
    return _State(error, {"__cause__": poison})


def _context(poison: Poison) -> Any:
    return _State(WithPoison("text"), {"__context__": poison})


def _note(poison: Poison) -> Any:
    return _State(WithPoison("text"), {"__notes__": [poison]})


def _failures(poison: Poison) -> Any:
    return _State(WithPoison("text"), {"failures": {1: poison}})


def _member(poison: Poison) -> Any:
    return ExceptionGroup("group", [WithPoison("text"), ExceptionGroup("inner", [poison])])


class _State:
    """Pickles as an exception with a given state."""

    def __init__(self, error: Exception, state: dict[str, Any]) -> None:
        self._error = error
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._error), self._error.args, self._state


PLACES = [_itself, _argument, _attribute, _cause, _context, _note, _failures, _member]


def _write_value(path: Path, content: Any) -> None:
    stream = pickling.dumps(content).joined()
    header = {
        "format": result_file.FORMAT,
        "python": result_file.PYTHON,
        "kind": "pickle",
        "type": "evil.Value",
    }
    write_envelope(path, header, [[stream]], sealed=True)


def _write_exception(form: str, path: Path, content: Any) -> None:
    if form == "rebuild":
        content = (WithPoison, ("text",), {"extra": content})
    if form == "group":
        member = ("pickle", pickling.dumps(content).joined(), "text")
        content = (ExceptionGroup, "text", [member], {})
    header = {
        "format": result_file.FORMAT,
        "python": result_file.PYTHON,
        "kind": "exception",
        "failure": "exception",
        "form": form,
        "type": "evil.Error",
        "message": "it broke",
        "traceback": "Traceback of the node\n",
    }
    write_envelope(path, header, [[pickling.dumps(content).joined()]], sealed=True)


Write = Callable[[Path, Any], None]
FILES: dict[str, Write] = {
    "value": _write_value,
    "pickle": functools.partial(_write_exception, "pickle"),
    "rebuild": functools.partial(_write_exception, "rebuild"),
    "group": functools.partial(_write_exception, "group"),
}


def _task(write: Write, content: Any, **config: Any) -> HandMade:
    """A task of which every rank has left such a file."""
    made = HandMade(config=config)
    for rank in range(RANKS):
        write(made.paths.result(1, rank), content)
        if write is not _write_value:
            failure = {"kind": "exception", "type": "evil.Error", "message": "it broke"}
            made.fails(rank, failure, first=rank == 0, code=1)
    made.end("completed" if write is _write_value else "failed", "it broke")
    return made


def _await(task: Task[Any]) -> Any:
    async def main() -> Any:
        return await task

    return asyncio.run(main())


def _map(task: Task[Any]) -> Any:
    return list(
        in_order(
            [lambda: task],
            max_concurrent=1,
            ended_among=Ends().among,
            return_exceptions=True,
        )
    )


REFUSING: dict[str, Callable[[Task[Any]], Any]] = {
    "result": lambda task: task.result(allow_pickle=False),
    "results": lambda task: task.results(allow_pickle=False),
    "result_of": lambda task: task.result_of(3, allow_pickle=False),
    "exception": lambda task: task.exception(allow_pickle=False),
    "failures": lambda task: task.failures(allow_pickle=False),
}
# What has no option of its own heeds what the task itself asks for.
BY_DEFAULT: dict[str, Callable[[Task[Any]], Any]] = {
    "result": lambda task: task.result(),
    "results": lambda task: task.results(),
    "result_of": lambda task: task.result_of(3),
    "exception": lambda task: task.exception(),
    "failures": lambda task: task.failures(),
    "await": _await,
    "map": _map,
}
OF_A_COMMAND = [("result", "{}"), ("result", "{}", "--rank", "3"), ("result", "{}", "--json")]
COMMANDS = [
    ("result", "{}", "--no-pickle"),
    ("result", "{}", "--no-pickle", "--json"),
    ("result", "{}", "--no-pickle", "--rank", "3"),
    ("logs", "{}"),
    ("status", "{}"),
    ("status", "{}", "--json"),
    ("doctor", "{}"),
    ("doctor", "{}", "--json"),
    ("top", "{}"),
    ("cost", "{}"),
    ("cancel", "{}"),
]


@pytest.mark.usefixtures("flow_home")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.strip("_"))
def test_no_call_loads_a_pickle_that_was_refused(
    file: str, place: Callable[[Poison], Any], tmp_path: Path
) -> None:
    made_by_pickle = tmp_path / "ran"
    content = place(Poison(made_by_pickle))
    asked = _task(FILES[file], content)
    plain = _task(FILES[file], content, results="plain")
    command = _task(FILES[file], content, command=["python", "train.py"])
    for name, call in REFUSING.items():
        with suppress(RemoteError, ResultUnavailable):
            call(asked.task)
        assert not made_by_pickle.exists(), f"{name}(allow_pickle=False) ran it"
    for name, call in BY_DEFAULT.items():
        for made, why in (
            (plain, "results='plain'"),
            (command, "a command, which returns nothing"),
        ):
            with suppress(RemoteError, ResultUnavailable):
                call(made.task)
            assert not made_by_pickle.exists(), f"{name} ran it in spite of {why}"
    # The poison works: who allows pickles loads it.
    with suppress(Exception):
        asked.task.result()
    assert made_by_pickle.exists()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_loads_a_pickle_that_was_refused(
    file: str, command: tuple[str, ...], flow: Flow, tmp_path: Path
) -> None:
    made_by_pickle = tmp_path / "ran"
    made = _task(FILES[file], _argument(Poison(made_by_pickle)))
    flow(*(word.format(made.id) for word in command))
    assert not made_by_pickle.exists()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("words", OF_A_COMMAND, ids=" ".join)
def test_a_command_that_runs_on_a_hostile_node_runs_nothing_here(
    file: str, words: tuple[str, ...], flow: Flow, tmp_path: Path
) -> None:
    made_by_pickle = tmp_path / "ran"
    poison = _argument(Poison(made_by_pickle))
    made = _task(FILES[file], poison, command=["python", "train.py"])
    flow(*(word.format(made.id) for word in words))
    assert not made_by_pickle.exists()


@pytest.mark.usefixtures("flow_home")
def test_a_refused_exception_comes_with_its_text_and_traceback(tmp_path: Path) -> None:
    made = _task(FILES["pickle"], _itself(Poison(tmp_path / "ran")))
    with pytest.raises(RemoteError, match=r"evil\.Error: it broke") as caught:
        made.task.result(allow_pickle=False)
    assert caught.value.type_name == "evil.Error"
    assert "Traceback of the node" in caught.value.remote_traceback
    assert {type(error) for error in caught.value.failures.values()} == {RemoteError}
    assert sorted(made.task.failures(allow_pickle=False)) == list(range(RANKS))


# The node's own look at the pickle must find nothing, so it does its work away from tasks only.
_EVIL = """\
FILE = ""


class Poison:
    def __repr__(self):
        return repr("harmless")

    def __reduce__(self):
        away = "__import__('os').environ.get('FLOW_TASK_ID') is None"
        return eval, (f"({away} and open({FILE!r}, 'w').close()) or 'harmless'",)


def boom(file: str):
    global FILE
    FILE = file
    raise ValueError("text", Poison())
"""


def test_an_exception_of_a_real_node_is_not_loaded(
    flow: Flow, flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(_EVIL)
    monkeypatch.chdir(tmp_path)
    made_by_pickle = tmp_path / "ran"
    try:
        ran = flow("run", "--detach", "evil.py::boom", "--file", str(made_by_pickle))
        assert ran.code == 0, ran.err
        task_id = ran.out.strip()
        refused = flow("result", task_id, "--no-pickle", "--timeout", "120")
        assert refused.code == 1
        assert "ValueError" in refused.err
        assert not made_by_pickle.exists()
        with pytest.raises(RemoteError):
            flowlite.Flow().get_task(task_id).result(timeout=90, allow_pickle=False)
        assert not made_by_pickle.exists()
        # And it would have run.
        assert flow("result", task_id).code == 1
        assert made_by_pickle.exists()
    finally:
        kill_processes_of_home(flow_home)


def test_one_place_alone_opens_results_and_it_asks_for_the_permission() -> None:
    root = Path(flowlite.__file__).parent
    callers = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "testing" not in path.parts and _names(path) & {"load_result", "read_outcome"}
    ]
    # The worker reads the traceback that it has just written, and loads nothing.
    assert sorted(callers) == [
        "api/outcomes.py",
        "bundle/result.py",
        "node/serialization/result_file.py",
        "node/worker/worker.py",
    ]


def _names(path: Path) -> set[str]:
    """All names and attributes that a module mentions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return names | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
