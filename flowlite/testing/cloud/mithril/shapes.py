"""The shapes of the API: its operations, and what their requests and replies have to look like.

The table `shapes.json` has the facts of the API's OpenAPI document about the operations that the fake implements:
paths, fields, types. `python -m tests.testing_cloud.openapi DOCUMENT` makes it anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE = json.loads(Path(__file__).with_name("shapes.json").read_text())
_SCHEMAS: dict[str, Any] = _TABLE["schemas"]
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "string"),
    "integer": (int, "int"),
    "number": ((int, float), "float"),
    "boolean": (bool, "bool"),
    "array": (list, "list"),
    "object": (dict, "dict"),
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API.

    Attributes:
        query: The schema of each query parameter; `required` says whether it has to be given.
        body: The schema of the body; None if there is none.
        replies: The schema of each status; None for a reply without a body.
    """

    method: str
    path: str
    query: Mapping[str, Any]
    body: Mapping[str, Any] | None
    replies: Mapping[str, Any]


OPERATIONS = {name: Operation(**each) for name, each in _TABLE["operations"].items()}


@dataclass(frozen=True, slots=True)
class Problem:
    """One value that is not as it has to be."""

    at: Place
    message: str
    kind: str

    def to_json(self) -> dict[str, Any]:
        """The problem as the API's replies have it."""
        return {"loc": list(self.at), "msg": self.message, "type": self.kind}


def read_query(action: str, given: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """The parameters of a query by their types, and what is wrong with them."""
    values: dict[str, Any] = {}
    wrong: list[Problem] = []
    for name, schema in OPERATIONS[action].query.items():
        if name in given:
            values[name] = _typed(_resolved(schema), given[name])
            wrong += problems(schema, values[name], ("query", name))
        elif schema["required"]:
            wrong.append(Problem(("query", name), "Field required", "missing"))
    return values, wrong


def body_problems(action: str, body: Any) -> list[Problem]:
    """What is wrong with the body of a request."""
    schema = OPERATIONS[action].body
    if schema is None:
        return []
    if body is None:
        return [Problem(("body",), "Field required", "missing")]
    return list(problems(schema, body, ("body",)))


def reply_problems(action: str, status: int, body: Any) -> list[str]:
    """What a reply has that the document forbids, or lacks; one sentence each."""
    replies = OPERATIONS[action].replies
    schema = replies.get(str(status))
    if schema is not None:
        found = problems(schema, body, (), strict=True)
        return [f"{action} {status} at {list(e.at)}: {e.message}" for e in found]
    if status >= 400:
        # Where the document is silent, clients read FastAPI's usual form.
        usual = isinstance(body, dict) and set(body) == {"detail"}
        return [] if usual and isinstance(body["detail"], str) else [f"{action} {status}: {body}"]
    if str(status) not in replies:
        return [f"{action} never gives {status}"]
    return [] if body is None else [f"{action} {status}: a body, {body}"]


def problems(
    schema: Mapping[str, Any], value: Any, at: Place, *, strict: bool = False
) -> Iterator[Problem]:
    """Finds what is wrong with a value. With `strict`, a field that the schema does not have is wrong, too."""
    if value is None and schema.get("nullable"):
        return
    schema = _resolved(schema)
    if alternatives := schema.get("oneOf"):
        if all(any(problems(each, value, at, strict=strict)) for each in alternatives):
            yield Problem(at, "Input has none of the known forms", "union")
        return
    if (kind := schema.get("type")) is not None:
        known, name = _TYPES[kind]
        if not isinstance(value, known) or (isinstance(value, bool) and kind != "boolean"):
            yield Problem(
                at, f"Input should be a valid {name}, and is {value!r:.80}", f"{name}_type"
            )
            return
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if allowed is not None and value not in allowed:
        words = " or ".join(repr(each) for each in allowed)
        yield Problem(at, f"Input should be {words}, and is {value!r:.80}", "enum")
    if isinstance(value, str):
        yield from _text_problems(schema, value, at)
    elif isinstance(value, int | float):
        least, most = schema.get("minimum", value), schema.get("maximum", value)
        if value < least:
            yield Problem(at, f"Input should be greater than or equal to {least}", "value_error")
        if value > most:
            yield Problem(at, f"Input should be less than or equal to {most}", "value_error")
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield Problem(at, f"List should have {schema['minItems']} items or more", "too_short")
        for number, each in enumerate(value):
            yield from problems(schema.get("items", {}), each, (*at, number), strict=strict)
    elif isinstance(value, dict):
        yield from _field_problems(schema, value, at, strict)


def _text_problems(schema: Mapping[str, Any], value: str, at: Place) -> Iterator[Problem]:
    if len(value) < schema.get("minLength", 0):
        yield Problem(at, "String should be longer", "string_too_short")
    if len(value) > schema.get("maxLength", len(value)):
        yield Problem(at, "String should be shorter", "string_too_long")
    if not re.search(schema.get("pattern", ""), value):
        text = f"String should match pattern '{schema['pattern']}'"
        yield Problem(at, text, "string_pattern_mismatch")


def _field_problems(
    schema: Mapping[str, Any], value: dict[str, Any], at: Place, strict: bool
) -> Iterator[Problem]:
    fields = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem((*at, name), "Field required", "missing")
    others = schema.get("additionalProperties", not fields)
    for name, each in value.items():
        if name in fields:
            yield from problems(fields[name], each, (*at, name), strict=strict)
        elif isinstance(others, dict):
            yield from problems(others, each, (*at, name), strict=strict)
        elif strict and not others:
            yield Problem((*at, name), f"{name} is not in the document", "extra_forbidden")


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else _resolved(_SCHEMAS[reference])


def _typed(schema: Mapping[str, Any], text: str) -> Any:
    """The value of a query parameter. What is not of its type stays a text."""
    kind = schema.get("type")
    if kind == "integer" and re.fullmatch(r"-?\d{1,9}", text):
        return int(text)
    if kind == "boolean":
        return _TRUTH.get(text.lower(), text)
    return [each for each in text.split(",") if each] if kind == "array" else text
