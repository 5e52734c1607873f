"""Validators for JSON values that another machine sent.

A shape is a function that raises ValueError for a value that does not have that shape. The text says where and what is
wrong, and does not repeat the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

Shape = Callable[[Any], None]

LARGEST = 2**63 - 1
"""The largest number that we send and that SQLite stores."""
_LATEST = 60e9


def anything(value: Any) -> None:
    """Any value, for fields that are only stored, shown or compared."""


def text(value: Any) -> None:
    """A string."""
    if not isinstance(value, str):
        _check(False, "a text", value)


def flag(value: Any) -> None:
    """True or false."""
    _check(isinstance(value, bool), "true or false", value)


def integer(value: Any) -> None:
    """A whole number."""
    if type(value) is not int or abs(value) > LARGEST:
        _check(False, "a whole number", value)


def count(value: Any) -> None:
    """A number that is not negative: a rank, an offset, a number of bytes."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        _check(False, "a number from 0 on", value)


def number(value: Any) -> None:
    """A finite number: a duration, or a time of a monotonic clock."""
    # No comparison holds for NaN.
    if type(value) not in (int, float) or not abs(value) <= LARGEST:
        _check(False, "a number", value)


def moment(value: Any) -> None:
    """A Unix time in seconds, within the years that can be formatted as a date."""
    number(value)
    _check(abs(value) <= _LATEST, "a time", value)


def one_of(values: Collection[str]) -> Shape:
    """One of the given strings."""

    def shape(value: Any) -> None:
        _check(isinstance(value, str) and value in values, f"one of {', '.join(values)}", value)

    return shape


def maybe(inner: Shape) -> Shape:
    """The inner shape, or null."""

    def shape(value: Any) -> None:
        if value is not None:
            inner(value)

    return shape


def listing(inner: Shape) -> Shape:
    """A list of values of the inner shape."""

    def shape(value: Any) -> None:
        _check(isinstance(value, list), "a list", value)
        index = 0
        try:
            for each in value:
                inner(each)
                index += 1
        except ValueError as error:
            raise ValueError(f"[{index}]{error}") from None

    return shape


def pair(inner: Shape) -> Shape:
    """A list of two values of the inner shape."""
    two = listing(inner)

    def shape(value: Any) -> None:
        two(value)
        _check(len(value) == 2, "a list of two", value)

    return shape


def mapping(inner: Shape) -> Shape:
    """An object with any keys and values of the inner shape."""

    def shape(value: Any) -> None:
        _check(isinstance(value, dict), "an object", value)
        try:
            for each in value.values():
                inner(each)
        except ValueError as error:
            raise ValueError(f".*{error}") from None

    return shape


def fields(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these fields. Other fields are allowed and ignored."""
    every = tuple({**required, **(optional or {})}.items())

    def shape(value: Any) -> None:
        if not isinstance(value, dict):
            _check(False, "an object", value)
        name = ""
        try:
            for name, inner in every:
                if name in value:
                    inner(value[name])
                elif name in required:
                    raise ValueError(" is missing")
        except ValueError as error:
            raise ValueError(f".{name}{error}") from None

    return shape


def _check(holds: bool, wanted: str, value: Any) -> None:
    if not holds:
        raise ValueError(f" is not {wanted} ({type(value).__name__})")
