"""A call as Python code, for display: `train(0.1, epochs=3)`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST = 20_000
_CUT = "…"


class _Repr(reprlib.Repr):
    """Makes the repr of values in bounded time and space."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 8
        self.maxtuple = self.maxlist = self.maxarray = self.maxdict = 200
        self.maxset = self.maxfrozenset = self.maxdeque = 200
        self.maxstring = self.maxlong = self.maxother = 4000


def call_text(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The call of a function with these arguments. Text beyond some thousand characters is replaced by a mark."""
    written = _Repr()
    shown = [_of(written, value) for value in args]
    shown += [f"{key}={_of(written, value)}" for key, value in kwargs.items()]
    text = f"{name}({', '.join(shown)})"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}{_CUT})"


def _of(written: reprlib.Repr, value: Any) -> str:
    try:
        return written.repr(value)
    except Exception as error:
        return f"<a {type(value).__name__} whose repr failed: {type(error).__name__}>"
