"""Result files: values, exceptions of all kinds, damage, and what a reader without pickles sees."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
import subprocess
import threading
import urllib.error
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.serialization import result_file
from flowlite.node.serialization.envelope import write_envelope
from flowlite.node.serialization.remote_exception import summarise


class Plain(Exception):
    """Nothing special."""


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class NoArguments(Exception):
    def __init__(self) -> None:
        super().__init__("always the same")


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class GrowingMessage(Exception):
    """Its pickle comes back, with another message."""

    def __init__(self, text: str) -> None:
        super().__init__(f"failed: {text}")


class HoldsLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.code = 5


class RefusesPickling(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("never")


class BreaksOnLoading(Exception):
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no")


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def local_exception() -> Exception:
    class Local(ValueError):
        pass

    return Local("from inside")


def raised(code: Any) -> BaseException:
    try:
        code()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


NASTY: dict[str, BaseException] = {
    "plain": Plain("a", 1),
    "two arguments": TwoArguments(5, "text"),
    "no arguments": NoArguments(),
    "keyword only": KeywordOnly(code=7),
    "growing message": GrowingMessage("x"),
    "lock in attribute": HoldsLock("text"),
    "refuses pickling": RefusesPickling("text"),
    "breaks on loading": BreaksOnLoading("text"),
    "no text": NoText(),
    "local class": local_exception(),
    "http": urllib.error.HTTPError("http://x", 404, "Not Found", {}, io.BytesIO(b"body")),  # type: ignore[arg-type]
    "file not found": raised(lambda: Path("/does/not/exist").read_text()),
    "unicode": raised(lambda: b"\xff".decode()),
    "syntax": raised(lambda: compile("a b", "file.py", "exec")),
    "json": raised(lambda: json.loads("{")),
    "process": subprocess.CalledProcessError(3, ["cmd"], b"out"),
    "key": KeyError("k"),
    "stop": StopIteration(3),
    "timeout": TimeoutError("t"),
    "assertion": AssertionError(),
    "pickling": pickle.PicklingError("p"),
    "group": ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2)])]),
}


class AddsToText(Exception):
    def __init__(self, what: str, code: int = 2) -> None:
        super().__init__(f"{what} ended with {code}")
        self.code = code


class RefusesEverything(Exception):
    allowed = False

    def __new__(cls, *arguments: object) -> RefusesEverything:
        if not cls.allowed:
            raise RuntimeError("not here")
        return super().__new__(cls, *arguments)


def refuses_everything(text: str) -> Exception:
    """An exception that cannot be made a second time."""
    RefusesEverything.allowed = True
    try:
        return RefusesEverything(text)
    finally:
        RefusesEverything.allowed = False


def written(path: Path, error: BaseException, **options: Any) -> result_file.OutcomeFile:
    result_file.write_exception(path, error, node=1, rank=3, **options)
    return result_file.read_outcome(path, allow_pickle=True)


@pytest.mark.parametrize("name", NASTY)
def test_exceptions_come_back_as_themselves(name: str, tmp_path: Path) -> None:
    error = NASTY[name]
    found = written(tmp_path / "r", error)
    assert found.kind == "exception"
    assert type(found.exception) is type(error)
    if name != "no text":
        assert str(found.exception) == str(error) == found.message
    assert found.type.rpartition(".")[2] == type(error).__qualname__.rpartition(".")[2]


def test_attributes_come_back(tmp_path: Path) -> None:
    assert written(tmp_path / "r", NASTY["two arguments"]).exception.code == 5  # type: ignore[union-attr]
    holding = written(tmp_path / "r", NASTY["lock in attribute"]).exception
    assert vars(holding) == {"code": 5}  # type: ignore[arg-type]
    missing = written(tmp_path / "r", NASTY["file not found"]).exception
    assert missing.filename == "/does/not/exist"  # type: ignore[union-attr]
    group = written(tmp_path / "r", NASTY["group"]).exception
    assert [type(e) for e in group.exceptions] == [ValueError, ExceptionGroup]  # type: ignore[union-attr]


def test_an_argument_that_cannot_travel_becomes_its_text(tmp_path: Path) -> None:
    found = written(tmp_path / "r", Plain("a", threading.Lock()))
    assert type(found.exception) is Plain
    assert found.exception.args[0] == "a"
    assert "lock" in found.exception.args[1]


def test_what_cannot_be_rebuilt_leaves_its_text(tmp_path: Path) -> None:
    found = written(tmp_path / "r", refuses_everything("inner"))
    assert found.exception is None
    assert "inner" in found.traceback


def test_the_members_of_a_group_come_back_each_in_its_own_form(tmp_path: Path) -> None:
    """A single one that needs another form, as `asyncio.TaskGroup` may have it, is not the end of `except*`."""
    members: list[Exception] = [ValueError(1), HoldsLock("inner"), TwoArguments(5, "text")]
    error = ExceptionGroup("g", [ExceptionGroup("h", members), refuses_everything("lost")])
    error.add_note("a note")
    group = written(tmp_path / "r", error).exception
    assert isinstance(group, ExceptionGroup)
    assert (str(group), group.__notes__) == ("g (2 sub-exceptions)", ["a note"])
    inner, lost = group.exceptions
    assert isinstance(inner, ExceptionGroup)
    assert [type(each) for each in inner.exceptions] == [ValueError, HoldsLock, TwoArguments]
    assert [str(each) for each in inner.exceptions] == [str(each) for each in members]
    assert inner.exceptions[2].code == 5  # type: ignore[union-attr]
    assert str(lost).endswith("RefusesEverything: lost")


def test_a_member_of_a_group_keeps_its_text(tmp_path: Path) -> None:
    """Its `__init__` takes what `args` holds, and makes another text of it."""
    members = [ValueError(1), AddsToText("shard 7"), AddsToText("shard 8", code=5)]
    group = written(tmp_path / "r", ExceptionGroup("g", members)).exception
    assert isinstance(group, ExceptionGroup)
    assert [str(each) for each in group.exceptions] == [str(each) for each in members]
    assert [type(each) for each in group.exceptions] == [type(each) for each in members]
    assert group.exceptions[2].code == 5  # type: ignore[union-attr]


def test_a_member_of_a_group_keeps_its_type_though_its_text_varies(tmp_path: Path) -> None:
    """As that of an argument, whose text has its address. `except* ValueError` would not see it as a text."""
    members = [ValueError(Custom(1)), KeyError("a")]
    group = written(tmp_path / "r", ExceptionGroup("g", members)).exception
    assert isinstance(group, ExceptionGroup)
    assert [type(each) for each in group.exceptions] == [ValueError, KeyError]


def test_an_exception_with_too_much_in_it_leaves_its_text(tmp_path: Path) -> None:
    path = tmp_path / "r"
    found = written(path, Plain("a" * 17_000_000))
    assert path.stat().st_size < 1_000_000
    assert found.message.startswith("aaa")
    assert "characters left out" in found.message


def test_the_traceback_has_causes_groups_and_notes_and_none_of_our_frames(tmp_path: Path) -> None:
    def inner() -> None:
        raise KeyError("the cause")

    def middle() -> None:
        try:
            inner()
        except KeyError as error:
            raise ValueError("the effect") from error

    def outer() -> None:
        try:
            middle()
        except ValueError as error:
            error.add_note("a note")
            raise ExceptionGroup("several", [error, OSError("another")]) from None

    error = raised(outer)
    text = written(tmp_path / "r", error).traceback
    for part in (
        "inner()",
        "the cause",
        "direct cause",
        "the effect",
        "a note",
        "several",
        "another",
    ):
        assert part in text

    from flowlite.node.worker.load_call import Call

    def user_code() -> None:
        raise ValueError("from user code")

    error = raised(Call(user_code, (), {}, "any").run)
    text = summarise(error).traceback
    assert "user_code" in text
    assert "flowlite/node" not in text
    assert "self.function" not in text


def test_a_recursion_error_has_a_bounded_text(tmp_path: Path) -> None:
    def forever(depth: int) -> None:
        forever(depth + 1)

    found = written(tmp_path / "r", raised(lambda: forever(0)))
    assert isinstance(found.exception, RecursionError)
    assert len(found.traceback) < 600_000


def test_the_failure_that_goes_with_the_event(tmp_path: Path) -> None:
    failure = result_file.write_exception(tmp_path / "r", ValueError("text"), node=1, rank=3)
    assert failure == {"kind": "exception", "type": "ValueError", "message": "text"}
    failure = result_file.write_exception(
        tmp_path / "r", result_file.ResultError("rank 3 ..."), kind="result"
    )
    assert failure == {"kind": "result", "type": "ResultError", "message": "rank 3 ..."}
    assert result_file.read_outcome(tmp_path / "r", allow_pickle=True).exception is None


class Custom:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [None, {"a": [1, 2.5, b"x"]}, (1,), OrderedDict(a=1), Custom(3), {1: Custom(4)}, ValueError],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back(value: Any, tmp_path: Path) -> None:
    result_file.write_value(tmp_path / "r", value)
    found = result_file.read_outcome(tmp_path / "r", allow_pickle=True).value
    assert found == value
    assert type(found) is type(value)


def test_arrays_come_back_without_pickles_and_writable(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    value = {"weights": np.arange(100_000.0), "loss": np.float32(0.5)}
    result_file.write_value(tmp_path / "r", value, "plain")
    found = result_file.read_outcome(tmp_path / "r", allow_pickle=False).value
    (tmp_path / "r").unlink()
    found["weights"][0] = 7
    assert found["weights"][:3].tolist() == [7, 1, 2]
    assert found["loss"] == np.float32(0.5)


def test_the_plain_policy_names_rank_place_and_type(tmp_path: Path) -> None:
    with pytest.raises(result_file.ResultError) as caught:
        result_file.write_value(tmp_path / "r", {"model": [Custom(1)]}, "plain", node=1, rank=3)
    for part in ("rank 3 on node 1", "type dict", "['model'][0]", "Custom", 'results="plain"'):
        assert part in str(caught.value)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("value", [(i for i in ()), threading.Lock(), {"a": threading.Lock()}])
def test_what_cannot_be_pickled_names_rank_and_type(value: Any, tmp_path: Path) -> None:
    with pytest.raises(result_file.ResultError) as caught:
        result_file.write_value(tmp_path / "r", value, node=1, rank=3)
    assert (
        f"rank 3 on node 1 returned a value of type {'dict' if isinstance(value, dict) else ''}"
        in str(caught.value)
    )
    assert "cannot pickle" in str(caught.value)


class Bomb:
    """Its pickle leaves a trace when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_without_pickles_nothing_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    result_file.write_value(tmp_path / "r", Bomb(trace))
    with pytest.raises(result_file.OutcomeError, match=r"is a pickle \(of type .*Bomb\)"):
        result_file.read_outcome(tmp_path / "r", allow_pickle=False)
    result_file.write_exception(tmp_path / "r", Plain("a"))
    found = result_file.read_outcome(tmp_path / "r", allow_pickle=False)
    assert found.exception is None
    assert found.message == "a"
    assert not trace.exists()


def test_every_damaged_byte_is_noticed_before_anything_is_loaded(tmp_path: Path) -> None:
    path, trace = tmp_path / "r", tmp_path / "trace"
    result_file.write_value(path, Bomb(trace))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(result_file.OutcomeError):
            result_file.read_outcome(path, allow_pickle=True)
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(result_file.OutcomeError):
            result_file.read_outcome(path, allow_pickle=True)
    assert not trace.exists()
    with pytest.raises(result_file.OutcomeError, match="No such file"):
        result_file.read_outcome(tmp_path / "missing", allow_pickle=True)


@pytest.mark.parametrize(
    ("header", "parts", "why"),
    [
        ({"kind": "list"}, [[b"[]"]], "unknown kind"),
        ({"kind": "plain"}, [], "unknown kind"),
        ({"kind": "plain"}, [[b"no structure"]], "cannot be read"),
        ({"kind": "pickle", "python": result_file.PYTHON}, [[b"no pickle"]], "cannot be loaded"),
    ],
)
def test_a_sealed_file_that_makes_no_sense_is_refused_with_words(
    header: dict[str, Any], parts: list[list[bytes]], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "result"
    write_envelope(path, {"format": result_file.FORMAT, **header}, parts, sealed=True)
    with pytest.raises(result_file.OutcomeError, match=why):
        result_file.read_outcome(path, allow_pickle=True)


def test_an_exception_says_who_raised_it(tmp_path: Path) -> None:
    path = tmp_path / "result"
    result_file.write_exception(path, Plain("lost"), node=2, rank=5)
    assert result_file.read_outcome(path, allow_pickle=False).raised_by == (2, 5)


def test_another_python_is_refused_before_unpickling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setattr(result_file, "PYTHON", [3, 99])
    result_file.write_value(tmp_path / "r", Bomb(trace))
    result_file.write_exception(tmp_path / "e", Plain("text"))
    result_file.write_value(tmp_path / "p", {"a": 1})
    monkeypatch.undo()
    with pytest.raises(result_file.OutcomeError, match=r"Python 3\.99"):
        result_file.read_outcome(tmp_path / "r", allow_pickle=True)
    assert result_file.read_outcome(tmp_path / "e", allow_pickle=True).exception is None
    assert result_file.read_outcome(tmp_path / "e", allow_pickle=True).message == "text"
    assert result_file.read_outcome(tmp_path / "p", allow_pickle=True).value == {"a": 1}
    assert not trace.exists()


def test_cancelled_errors_are_kept_apart_by_the_reader(tmp_path: Path) -> None:
    found = written(tmp_path / "r", asyncio.CancelledError())
    assert type(found.exception) is asyncio.CancelledError


def test_a_value_of_another_version_is_refused_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(result_file, "FORMAT", 1)
        result_file.write_value(tmp_path / "r", {"loss": 0.5})
    with pytest.raises(result_file.OutcomeError, match="another version of flowlite"):
        result_file.read_outcome(tmp_path / "r", allow_pickle=True)
