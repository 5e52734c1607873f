"""Conversion of the contract's values to and from JSON."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

_PLAIN = frozenset({str, int, float, bool, type(None)})


class JsonValue:
    """Base class of the values that cross the contract: conversion of a flat dataclass to and from JSON."""

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain JSON values, which shares none of them with this one."""
        return dict(copied(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuilds the value from `to_json`. Fields of a newer version are ignored."""
        kind: type = cls
        names = field_names(kind)
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
        return cls(**values)


@functools.cache
def field_names(kind: type) -> dict[str, None]:
    """The names of a dataclass's fields, in order. Asking for them takes longer than to convert a small value."""
    return dict.fromkeys(each.name for each in dataclasses.fields(kind))


def copied(value: Any) -> Any:
    """A deep copy of a JSON value, with dicts in place of dataclasses. `asdict` takes four times as long."""
    kind: type = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {name: copied(each) for name, each in value.items()}
    if kind is list or kind is tuple:
        return kind(copied(each) for each in value)
    if dataclasses.is_dataclass(value):
        return {name: copied(getattr(value, name)) for name in field_names(kind)}
    return copy.deepcopy(value)
