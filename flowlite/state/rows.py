"""Converts rows of the database to records and back, and detects damaged rows.

SQLite has no checksums of its own: flipped bytes on a disk are returned as they are. Everything that is read is
therefore compared with the types of its record, so that damage is found here and not where a value is used.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sqlite3
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, TypeVar, cast

from flowlite.provider import Candidate, Instance, Plan
from flowlite.provider.json_value import field_names
from flowlite.state.records import STATES, Event, InstanceRecord, Intent, TaskRecord

JSON_FIELDS = frozenset({"config", "plan", "call", "roster", "data", "candidates", "tried"})
TABLES: dict[type, str] = {
    TaskRecord: "tasks",
    InstanceRecord: "instances",
    Intent: "intents",
    Event: "events",
}
# The column that identifies a row in messages.
KEYS = {"tasks": "id", "instances": "id", "intents": "token", "events": "seq"}

_Record = TypeVar("_Record")
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "dict[str, Any]": (dict,),
    "list[str]": (list,),
    "list[dict[str, Any]]": (list,),
    "tuple[str, ...]": (tuple,),
    "tuple[dict[str, Any], ...]": (tuple,),
}
# Of collections, the type of the elements, and its name in messages.
_ELEMENTS: dict[str, tuple[type, str]] = {
    "list[str]": (str, "texts"),
    "tuple[str, ...]": (str, "texts"),
    "list[dict[str, Any]]": (dict, "objects"),
}
# Later times (after the year 5138) cannot be shown.
_LATEST = 1e11


class RowDamaged(ValueError):
    """A row does not fit its record. The text names the field and what is wrong."""


def read_row(kind: type[_Record], row: sqlite3.Row) -> _Record:
    """Returns the record of a row. Raises RowDamaged."""
    if kind is InstanceRecord:
        # Supervisors read the same rows many times.
        found: Any = _read_instance(tuple(row.keys()), *row)
        return cast(_Record, found)
    return _read(kind, dict(row))


@functools.lru_cache(maxsize=4096, typed=True)
def _read_instance(columns: tuple[str, ...], *values: Any) -> InstanceRecord:
    row = dict(zip(columns, values, strict=True))
    found = _read(InstanceRecord, row)
    _check_value("data", Instance, found.data)
    return found


def _read(kind: type[_Record], row: Mapping[str, Any]) -> _Record:
    record: type = kind
    fields = field_names(record)
    if not row.keys() >= fields.keys():
        raise RowDamaged(f"its columns are not those of {TABLES.get(kind, 'its table')}")
    # A newer flowlite may have added columns while this process leads a task.
    values = {name: _value(name, row[name]) for name in fields}
    _check_types(kind, values)
    if kind is TaskRecord:
        if values["state"] not in STATES:
            raise RowDamaged(f"state: {values['state']!r} is none")
        _check_plan(row["plan"])
        _check_candidates(values["candidates"], values["candidate"])
        _check_tried(values["tried"], len(values["candidates"]))
    return kind(**values)


def row_text(kind: type, row: sqlite3.Row) -> str:
    """Returns a row that `read_row` reads as a JSON object. What is stored as JSON is taken as it is."""
    values = (row[name] for name in field_names(kind))
    if kind is InstanceRecord:
        # Of a large gang, few rows change at a time.
        return _instance_text(*values)
    return _object_text(kind, values)


def record_text(record: TaskRecord) -> str:
    """Returns what `row_text` returns for the row of this record."""
    kind: type = type(record)
    return _object_text(kind, (encode(name, getattr(record, name)) for name in field_names(kind)))


@functools.lru_cache(maxsize=4096, typed=True)
def _instance_text(*values: Any) -> str:
    return _object_text(InstanceRecord, values)


def _object_text(kind: type, values: Iterable[Any]) -> str:
    named = dict(zip(field_names(kind), values, strict=True))
    plain = {name: value for name, value in named.items() if name not in JSON_FIELDS}
    stored = [f', "{name}": {_as_text(named[name])}' for name in named if name in JSON_FIELDS]
    return f"{json.dumps(plain)[:-1]}{''.join(stored)}}}"


def _as_text(stored: Any) -> str:
    # A flipped bit makes bytes of a text, which `json.loads` reads all the same.
    return stored if isinstance(stored, str) else json.dumps(json.loads(stored))


def encode(name: str, value: Any) -> Any:
    """Returns a value as it is stored in the column of that name."""
    return json.dumps(value) if name in JSON_FIELDS else value


def insert_row(
    db: sqlite3.Connection, table: str, values: Mapping[str, Any], *, replace: bool = False
) -> None:
    """Adds a row, in place of one with the same key if that is asked for."""
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    marks = ", ".join("?" * len(values))
    db.execute(
        f"{verb} INTO {table} ({', '.join(values)}) VALUES ({marks})",
        [encode(name, value) for name, value in values.items()],
    )


def _value(name: str, stored: Any) -> Any:
    if isinstance(stored, str) and not _is_text(stored):
        raise RowDamaged(f"{name}: not text")
    if name not in JSON_FIELDS:
        return stored
    try:
        return json.loads(stored)
    except (TypeError, ValueError, RecursionError):
        raise RowDamaged(f"{name}: not JSON") from None


def _is_text(stored: str) -> bool:
    """Whether the text was UTF-8. The connection decodes other bytes to lone surrogates."""
    if stored.isascii():
        return True
    try:
        stored.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_value(name: str, kind: type[Plan] | type[Instance], data: dict[str, Any]) -> None:
    """Checks a field that holds a `Plan` or an `Instance`."""
    record: type = kind
    try:
        value = kind.from_json(data)
    except TypeError:
        raise RowDamaged(f"{name}: something is missing") from None
    try:
        _check_types(record, {field: getattr(value, field) for field, *_ in _fields_of(record)})
    except RowDamaged as error:
        raise RowDamaged(f"{name}: {error}") from None


@functools.lru_cache(maxsize=4)
def _check_plan(stored: str) -> None:
    """Checks the field of a task that holds its plan. The same text is read many times in a task."""
    _check_value("plan", Plan, json.loads(stored))


def _check_candidates(candidates: list[dict[str, Any]], present: int) -> None:
    if candidates and not 0 <= present < len(candidates):
        raise RowDamaged(f"candidate: {present} is not one of {len(candidates)}")
    for each in candidates:
        try:
            Candidate.from_json(each)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RowDamaged("candidates: one is not what it may be") from None
        _check_value("candidates: plan", Plan, each["plan"])


def _check_tried(tried: list[dict[str, Any]], places: int) -> None:
    for each in tried:
        texts = (each.get("why"), each.get("kind"))
        counts = (each.get("candidate"), each.get("times"), each.get("refusals"))
        times = (each.get("at"), each.get("since"), each.get("left_at", 0.0))
        if (
            not all(isinstance(text, str) for text in texts)
            or not all(isinstance(count, int) and count >= 0 for count in counts)
            or not all(isinstance(time, (int, float)) and 0 <= time < _LATEST for time in times)
            or each["candidate"] >= places
        ):
            raise RowDamaged("tried: one is not what it may be")


def _check_types(kind: type, values: dict[str, Any]) -> None:
    for name, accepted, elements, is_time in _fields_of(kind):
        value: Any = values.get(name)
        if not isinstance(value, accepted):
            raise RowDamaged(f"{name}: not what it may be")
        if elements is not None and not all(isinstance(each, elements[0]) for each in value):
            raise RowDamaged(f"{name}: not a list of {elements[1]}")
        if is_time and value is not None and not 0 <= value < _LATEST:
            raise RowDamaged(f"{name}: not a time")


@functools.cache
def _fields_of(kind: type) -> tuple[tuple[str, Any, tuple[type, str] | None, bool], ...]:
    """Returns name, accepted types, what the elements of a collection are, and whether it is a time, for each field."""
    found = []
    for field in dataclasses.fields(kind):
        plain = str(field.type).removesuffix(" | None")
        accepted = _TYPES.get(plain, (object,)) + ((NoneType,) if plain != field.type else ())
        is_time = field.name == "at" or field.name.endswith(("_at", "_expires"))
        found.append((field.name, accepted, _ELEMENTS.get(plain), is_time))
    return tuple(found)
