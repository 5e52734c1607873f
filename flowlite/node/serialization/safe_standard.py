"""Small values of the standard library in the plain form, each as a name and a few numbers or a text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .safe_base import NotPlain, type_name


def _date(value: Any) -> list[int]:
    return [value.year, value.month, value.day]


def _time(value: Any) -> list[Any]:
    """Encodes a time as numbers: the ISO form cannot hold the fold, and reads zones of less than a second wrongly."""
    zone = value.tzinfo
    if zone is not None:
        # A name given to the zone would be lost.
        if type(zone) is not sys.modules["datetime"].timezone or len(zone.__getinitargs__()) != 1:
            raise NotPlain(type_name(value), f"its time zone is a {type_name(zone)}")
        zone = _delta(zone.utcoffset(None))
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, zone]


def _delta(value: Any) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _read_time(numbers: list[Any]) -> dict[str, Any]:
    """Returns the arguments that a time and a datetime have in common."""
    datetime = import_module("datetime")
    *numbers, fold, zone = numbers
    names = ("hour", "minute", "second", "microsecond")
    found = dict(zip(names, numbers, strict=True))
    tzinfo = None if zone is None else datetime.timezone(datetime.timedelta(*zone))
    return {**found, "fold": fold, "tzinfo": tzinfo}


# By module and name of the type: how a value is written, and how it is read by that type.
_TYPES: dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    ("datetime", "datetime"): (
        lambda value: [_date(value), _time(value)],
        lambda kind, data: kind(*data[0], **_read_time(data[1])),
    ),
    ("datetime", "date"): (_date, lambda kind, data: kind(*data)),
    ("datetime", "time"): (_time, lambda kind, data: kind(**_read_time(data))),
    ("datetime", "timedelta"): (_delta, lambda kind, data: kind(*data)),
    ("decimal", "Decimal"): (str, lambda kind, data: kind(data)),
    ("pathlib", "PosixPath"): (str, lambda kind, data: kind(data)),
    ("pathlib", "PurePosixPath"): (str, lambda kind, data: kind(data)),
    ("uuid", "UUID"): (str, lambda kind, data: kind(data)),
}


def types() -> dict[type, tuple[str, Callable[[Any], Any]]]:
    """Returns name and writer by type, for loaded modules only: of others there can be no values."""
    return {
        getattr(sys.modules[module], name): (name, write)
        for (module, name), (write, _) in _TYPES.items()
        if module in sys.modules
    }


def reader(tag: str) -> Callable[[Any], Any] | None:
    """Returns the reader of the values with this name, if there is one."""
    for (module, name), (_, read) in _TYPES.items():
        if name == tag:
            kind = getattr(import_module(module), name)
            return lambda data: read(kind, data)
    return None
