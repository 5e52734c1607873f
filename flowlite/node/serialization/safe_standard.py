"""Small values of the standard library in the plain form, each as a letter and a text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .safe_base import NotPlain, PlainError, type_name


def types() -> dict[type, tuple[bytes, Callable[[Any], str]]]:
    """Returns letter and writer by type, for loaded modules only: of others there can be no values."""
    found: dict[type, tuple[bytes, Callable[[Any], str]]] = {range: (b"r", _range_text)}
    if datetime := sys.modules.get("datetime"):
        found[datetime.datetime] = (b"t", _datetime_text)
        found[datetime.time] = (b"h", _time_text)
        found[datetime.date] = (b"d", lambda value: str(value.isoformat()))
        found[datetime.timedelta] = (b"s", _delta_text)
    if decimal := sys.modules.get("decimal"):
        found[decimal.Decimal] = (b"m", str)
    if pathlib := sys.modules.get("pathlib"):
        found[pathlib.PosixPath] = (b"p", str)
        found[pathlib.PurePosixPath] = (b"P", str)
    if uuid := sys.modules.get("uuid"):
        found[uuid.UUID] = (b"u", str)
    return found


def read(letter: bytes | memoryview, text: str) -> Any:
    """Reads the value written as `text`. Raises ValueError if it is not one."""
    reader = _READERS.get(bytes(letter))
    if reader is None:
        raise PlainError("unknown kind of value")
    return reader(text)


def _range_text(value: range) -> str:
    return f"{value.start} {value.stop} {value.step}"


def _datetime_text(value: Any) -> str:
    return f"{value.year} {value.month} {value.day} {_time_text(value)}"


def _time_text(value: Any) -> str:
    """Encodes a time as numbers: the ISO form cannot hold the fold, and reads zones of less than a second wrongly."""
    numbers = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    zone = value.tzinfo
    if zone is not None:
        # A name given to the zone would be lost.
        timezone = sys.modules["datetime"].timezone
        if type(zone) is not timezone or len(zone.__getinitargs__()) != 1:
            raise NotPlain(type_name(value), f"its time zone is a {type_name(zone)}")
        offset = zone.utcoffset(None)
        numbers += [offset.days, offset.seconds, offset.microseconds]
    return " ".join(map(str, numbers))


def _delta_text(value: Any) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _read_range(text: str) -> range:
    start, stop, step = map(int, text.split(" "))
    return range(start, stop, step)


def _read_datetime(text: str) -> Any:
    from datetime import datetime

    year, month, day, time = text.split(" ", 3)
    return datetime.combine(datetime(int(year), int(month), int(day)).date(), _read_time(time))


def _read_time(text: str) -> Any:
    from datetime import time, timedelta, timezone

    hour, minute, second, microsecond, fold, *offset = map(int, text.split(" "))
    zone = timezone(timedelta(*offset)) if offset else None
    return time(hour, minute, second, microsecond, zone, fold=fold)


def _read_date(text: str) -> Any:
    from datetime import date

    return date.fromisoformat(text)


def _read_delta(text: str) -> Any:
    from datetime import timedelta

    days, seconds, microseconds = map(int, text.split(" "))
    return timedelta(days, seconds, microseconds)


def _read_decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def _read_path(text: str) -> Any:
    from pathlib import PosixPath

    return PosixPath(text)


def _read_pure_path(text: str) -> Any:
    from pathlib import PurePosixPath

    return PurePosixPath(text)


def _read_uuid(text: str) -> Any:
    from uuid import UUID

    return UUID(text)


_READERS: dict[bytes, Callable[[str], Any]] = {
    b"r": _read_range,
    b"t": _read_datetime,
    b"h": _read_time,
    b"d": _read_date,
    b"s": _read_delta,
    b"m": _read_decimal,
    b"p": _read_path,
    b"P": _read_pure_path,
    b"u": _read_uuid,
}
