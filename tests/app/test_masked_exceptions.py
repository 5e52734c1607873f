"""No exception that a worker raised shows a secret, wherever its class keeps it."""

from __future__ import annotations

import subprocess
import traceback
from typing import Any

import pytest

from flowlite.api.masked_exceptions import masked
from flowlite.errors import RemoteError, RemoteTraceback
from flowlite.output.redact import Mask

SECRET = "hunter2-long"
MASK = Mask([SECRET])


class Keeping(Exception):
    def __init__(self, token: str) -> None:
        super().__init__("refused")
        self.token = token

    def __str__(self) -> str:
        return f"refused with {self.token}"


class Slotted(Exception):
    __slots__ = ("token",)

    def __init__(self, token: str) -> None:
        self.token = token

    def __str__(self) -> str:
        return self.token


class Stubborn(Exception):
    """Makes its text of nothing that it holds, and takes no changes."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "__cause__":
            raise RuntimeError("no")
        super().__setattr__(name, value)

    def __str__(self) -> str:
        return f"refused with {SECRET}"


def noted() -> Exception:
    error = ValueError("refused")
    error.add_note(f"with {SECRET}")
    return error


def circular() -> Exception:
    error = ValueError(SECRET)
    error.args = (SECRET, error)
    return error


KEPT: dict[str, tuple[Exception, type[Exception]]] = {
    "arguments": (ValueError("refused", [{"a": (SECRET,)}, {SECRET}, SECRET.encode()]), ValueError),
    "keys": (KeyError({SECRET: 1}), KeyError),
    "attributes": (Keeping(SECRET), Keeping),
    "slots": (Slotted(SECRET), Slotted),
    "notes": (noted(), ValueError),
    "a path": (FileNotFoundError(2, "No such file", f"/data/{SECRET}"), FileNotFoundError),
    "a command": (
        subprocess.CalledProcessError(1, ["login", SECRET]),
        subprocess.CalledProcessError,
    ),
    "a line of code": (
        SyntaxError("wrong", ("x.py", 1, 1, f"token = '{SECRET}'", 1, 2)),
        SyntaxError,
    ),
    "bytes": (UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, "no"), UnicodeDecodeError),
    "an exception in it": (RuntimeError(Keeping(SECRET)), RuntimeError),
    "itself": (circular(), ValueError),
    "a group": (ExceptionGroup("some", [ValueError(SECRET), Keeping(SECRET)]), ExceptionGroup),
    "the name of a group": (ExceptionGroup(SECRET, [ValueError()]), RemoteError),
    "nowhere that can be found": (Stubborn(), RemoteError),
}


@pytest.mark.parametrize(("error", "kind"), KEPT.values(), ids=KEPT.keys())
def test_it_is_not_shown(error: Exception, kind: type[Exception]) -> None:
    error.__cause__ = RemoteTraceback(f"Traceback: {SECRET}")
    shown = masked(error, MASK)
    assert type(shown) is kind
    texts = [str(shown), repr(shown), "".join(traceback.format_exception(shown))]
    assert SECRET not in "".join(texts)
    assert "Traceback: ***" in str(shown.__cause__)


@pytest.mark.parametrize("args", [(), ("refused", 5, {"a": [1]}), (b"x", None)])
def test_others_stay_as_they_are(args: tuple[Any, ...]) -> None:
    error = ValueError(*args)
    shown = masked(error, MASK)
    assert shown is error
    assert all(one is other for one, other in zip(shown.args, args, strict=True))


def test_the_one_in_its_place_says_where_it_was_raised() -> None:
    error = Stubborn()
    object.__setattr__(error, "__notes__", ["raised on node 1, rank 3", f"with {SECRET}"])
    assert masked(error, MASK).__notes__ == ["raised on node 1, rank 3", "with ***"]


def test_without_secrets_nothing_is_looked_at() -> None:
    error = Stubborn()
    assert masked(error, Mask()) is error
