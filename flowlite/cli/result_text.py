"""Formats what a function returned as text, in bounded time and space for any value that a node may send.

A few bytes can encode a value that takes forever to write out: a list that holds another list twice, and so on, 34
levels deep. So elements are counted as they are written, and those beyond the limit are replaced by a mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MOST_ELEMENTS = 100_000
MOST_CHARACTERS = 1_000_000
MOST_DIGITS = 100_000
# Python refuses to convert longer ints to text at once, since that takes quadratic time.
_PIECE_DIGITS = 4000
# Values with more elements times levels are shown on one line, since pprint's time grows with that product.
_MOST_WORK = 2_000_000
_MOST_DEPTH = 200
_WIDTH = 120
# The most elements, and characters of longer texts, that may be written repeatedly in JSON.
_MOST_REPEATED = 500_000
_SHORT_TEXT = 64
_CUT = "…"


class _ShownAs:
    """Replaces a part of a value that is not shown by its own `repr`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def pretty(value: Any) -> str:
    """The repr of a value, on as many lines as needed, with a mark at the end if something is left out."""
    from pprint import pformat

    copy = _Copy()
    shown = copy.shown(value)
    flat = copy.elements * copy.deepest > _MOST_WORK
    text = repr(shown) if flat else pformat(shown, width=_WIDTH, sort_dicts=False)
    return _marked(text, copy.cut)


def one_line(value: Any) -> str:
    """As `pretty`, on one line."""
    copy = _Copy()
    return _marked(repr(copy.shown(value)), copy.cut)


def as_json(value: Any) -> Any:
    """The value as JSON, if it consists of JSON types (tuples count as lists); else None.

    Also None for a value that would become far larger as JSON than it is in memory.
    """
    if _repeats_too_much(value):
        return None
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None


class _Copy:
    """Copies a value up to the limits, and replaces parts that cannot be shown as they are.

    It counts its elements and its levels, and notes whether something was left out.
    """

    def __init__(self) -> None:
        self.elements = 0
        self.deepest = 1
        self.cut = False
        self._replaced = False
        self._characters = 0
        self._depth = 0
        self._open: set[int] = set()

    def shown(self, value: Any) -> Any:
        """The value itself if it can be shown as it is, else its copy."""
        copy = self.of(value)
        return copy if self.cut or self._replaced else value

    def of(self, value: Any) -> Any:
        """The copy of a value."""
        self.elements += 1
        kind = type(value)
        if kind is int:
            return self._int(value)
        if kind in (str, bytes, bytearray):
            return self._text(value)
        if kind in (list, tuple, dict, set, frozenset):
            return self._container(kind, value)
        return self._other(value)

    def _full(self) -> bool:
        return self.elements >= MOST_ELEMENTS or self._characters >= MOST_CHARACTERS

    def _left_out(self, text: str = _CUT) -> _ShownAs:
        self.cut = True
        return _ShownAs(text)

    def _int(self, value: int) -> Any:
        if value.bit_length() <= 3 * _PIECE_DIGITS:
            self._characters += len(str(value))
            return value
        if value.bit_length() * 3 > MOST_DIGITS * 10:
            return self._left_out(f"<an int of {value.bit_length():,} bits>")
        text = _digits(value)
        self._characters += len(text)
        self._replaced = True
        return _ShownAs(text)

    def _text(self, value: Any) -> Any:
        room = max(0, MOST_CHARACTERS - self._characters)
        if len(value) > room:
            self._characters = MOST_CHARACTERS
            return self._left_out(f"{value[:room]!r}{_CUT}")
        self._characters += len(value)
        return value

    def _container(self, kind: Any, value: Any) -> Any:
        if self._full() or self._depth >= _MOST_DEPTH or id(value) in self._open:
            return self._left_out(f"<{kind.__name__} of {len(value):,}>" if value else repr(value))
        self._open.add(id(value))
        self._depth += 1
        self.deepest = max(self.deepest, self._depth)
        try:
            if kind is dict:
                found: Any = dict(self._pairs(value))
            else:
                found = kind(self._items(value))
        finally:
            self._depth -= 1
            self._open.remove(id(value))
        return found

    def _items(self, value: Iterable[Any]) -> Iterable[Any]:
        for item in value:
            if self._full():
                yield self._left_out()
                return
            yield self.of(item)

    def _pairs(self, value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
        for key, item in value.items():
            if self._full():
                yield self._left_out(), self._left_out()
                return
            yield self.of(key), self.of(item)

    def _other(self, value: Any) -> Any:
        """Handles values that are shown by their own repr: numbers, arrays (whose repr is short), other objects."""
        try:
            text = repr(value)
        except Exception as error:
            return self._left_out(
                f"<a {type(value).__name__} whose repr failed: {type(error).__name__}>"
            )
        room = max(0, MOST_CHARACTERS - self._characters)
        self._characters += len(text)
        return self._left_out(f"{text[:room]}{_CUT}") if len(text) > room else value


def _digits(value: int) -> str:
    """A long int in decimal notation."""
    pieces, left, step = [], abs(value), 10**_PIECE_DIGITS
    while left >= step:
        left, piece = divmod(left, step)
        pieces.append(f"{piece:0{_PIECE_DIGITS}}")
    return ("-" if value < 0 else "") + str(left) + "".join(reversed(pieces))


def _repeats_too_much(value: Any) -> bool:
    """Whether parts that occur several times would make a value far larger when it is written out."""
    seen: set[int] = set()
    repeated = 0
    left: list[Any] = [value]
    while left:
        item = left.pop()
        kind = type(item)
        if kind not in (list, tuple, dict) and not (kind is str and len(item) > _SHORT_TEXT):
            continue
        if id(item) in seen:
            repeated += 1 + len(item)
            if repeated > _MOST_REPEATED:
                return True
        seen.add(id(item))
        if kind is not str:
            left.extend(item)
        if kind is dict:
            left.extend(item.values())
    return False


def _marked(text: str, cut: bool) -> str:
    if len(text) > 2 * MOST_CHARACTERS:
        text, cut = text[: 2 * MOST_CHARACTERS] + _CUT, True
    if not cut:
        return text
    return f"{text}\n{_CUT} something is left out here; `task.result()` has all of it"
