"""Results on the client: the worker's own exception, where it comes from, and what is refused."""

from __future__ import annotations

import asyncio
import traceback
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest

from flowlite.bundle.result import Outcome, load_result
from flowlite.errors import RemoteError, RemoteTraceback, ResultUnavailable, TaskFailed
from flowlite.node.serialization import envelope, pickling, result_file, safe_base
from flowlite.node.worker.load_call import LoadError


def read(path: Path, *, allow_pickle: bool = True) -> Outcome:
    return load_result(
        path,
        allow_pickle=allow_pickle,
        node=1,
        rank=3,
        task_name="digits",
        task_id="task-1",
        attempt=2,
    )


def failed() -> ValueError:
    try:
        raise ValueError("wrong shape")
    except ValueError as error:
        return error


def test_a_value(tmp_path: Path) -> None:
    result_file.write_value(tmp_path / "r", {"accuracy": 0.97})
    assert read(tmp_path / "r").unwrap() == {"accuracy": 0.97}


def test_an_exception_is_raised_as_itself_with_traceback_and_place(tmp_path: Path) -> None:
    result_file.write_exception(tmp_path / "r", failed(), node=1, rank=3)
    found = read(tmp_path / "r")
    assert found.kind == "exception"
    with pytest.raises(ValueError, match="wrong shape") as caught:
        found.unwrap()
    assert str(caught.value) == "wrong shape"
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert 'raise ValueError("wrong shape")' in str(caught.value.__cause__)
    assert caught.value.__notes__ == ["raised on node 1, rank 3 of task digits (task-1), attempt 2"]
    shown = "".join(traceback.format_exception(caught.value))
    assert "in failed" in shown
    assert "raised on node 1, rank 3" in shown


def test_without_pickles_exceptions_come_as_text(tmp_path: Path) -> None:
    result_file.write_exception(tmp_path / "r", failed())
    error = read(tmp_path / "r", allow_pickle=False).exception
    assert type(error) is RemoteError
    assert str(error) == "ValueError: wrong shape"
    assert error.type_name == "ValueError"
    assert error.task_id == "task-1"
    assert "in failed" in error.remote_traceback
    assert isinstance(error.__cause__, RemoteTraceback)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), asyncio.CancelledError("x"), GeneratorExit()]
)
def test_what_would_mean_something_else_here_comes_as_text(
    error: BaseException, tmp_path: Path
) -> None:
    result_file.write_exception(tmp_path / "r", error)
    assert type(read(tmp_path / "r").exception) is RemoteError


@pytest.mark.parametrize("kind", ["load", "result"])
def test_other_failures_are_failures_of_the_task(kind: str, tmp_path: Path) -> None:
    result_file.write_exception(tmp_path / "r", LoadError("no module 'x' on this node"), kind=kind)
    found = read(tmp_path / "r")
    assert found.kind == kind
    assert type(found.exception) is TaskFailed
    assert str(found.exception) == "no module 'x' on this node"
    assert found.exception.task_id == "task-1"


def test_a_class_that_is_not_here_comes_as_text(tmp_path: Path) -> None:
    import sys
    import types

    module = types.ModuleType("only_on_the_node")
    exec("class Special(Exception): pass", vars(module))
    sys.modules["only_on_the_node"] = module
    try:
        result_file.write_exception(tmp_path / "r", module.Special("text"))
    finally:
        del sys.modules["only_on_the_node"]
    error = read(tmp_path / "r").exception
    assert type(error) is RemoteError
    assert error.type_name == "only_on_the_node.Special"
    assert str(error) == "only_on_the_node.Special: text"


def test_damage_and_absence_name_the_rank(tmp_path: Path) -> None:
    with pytest.raises(ResultUnavailable, match="node 1, rank 3 of task digits"):
        read(tmp_path / "r")
    result_file.write_value(tmp_path / "r", 1)
    (tmp_path / "r").write_bytes((tmp_path / "r").read_bytes()[:-1])
    with pytest.raises(ResultUnavailable, match="cut off or damaged"):
        read(tmp_path / "r")


class Special:
    pass


def test_pickles_are_refused_where_plain_was_asked(tmp_path: Path) -> None:
    result_file.write_value(tmp_path / "r", Special())
    assert isinstance(read(tmp_path / "r").value, Special)
    with pytest.raises(ResultUnavailable, match=r"is a pickle \(of type .*Special\)"):
        read(tmp_path / "r", allow_pickle=False)


@pytest.mark.parametrize("plain", [True, False])
def test_a_value_with_more_arrays_than_a_header_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Those of a few hundred thousand samples, each of some kilobytes."""
    monkeypatch.setattr(envelope, "_MAX_SEALED_HEADER", 1000)
    for module in (safe_base, pickling):
        monkeypatch.setattr(module, "MOST_PARTS", 10)
    arrays = [numpy.full(2048, n) for n in range(200)]
    result_file.write_value(tmp_path / "r", arrays if plain else OrderedDict(a=arrays))
    found = read(tmp_path / "r", allow_pickle=not plain).unwrap()
    for n, array in enumerate(found if plain else found["a"]):
        assert (array == n).all()
        array += 1
