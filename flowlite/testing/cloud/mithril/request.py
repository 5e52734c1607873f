"""A request as operations see it, with the validation of its fields. Wrong fields are listed with status 422."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowlite.testing.cloud.mithril.errors import Refused, invalid, problem
from flowlite.testing.cloud.mithril.forms import cents_of, seconds_of
from flowlite.testing.cloud.mithril.records import ApiKey

_NAMES = {str: "string", int: "int", bool: "bool", list: "list", dict: "dict"}


@dataclass
class Request:
    """One call.

    Attributes:
        action: The name of the operation.
        path: The path parameters.
        query: The query parameters. Repeated ones are joined with commas.
        body: The parsed body; None if there was none.
        headers: The headers, with lower-case names.
        key: The API key of the request.
    """

    action: str
    path: dict[str, str]
    query: dict[str, str]
    body: Any
    headers: dict[str, str]
    key: ApiKey | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters by name."""
        given = self.body if isinstance(self.body, dict) else {}
        return {**self.path, **self.query, **given}

    def field(self, name: str, kind: type, default: Any = ...) -> Any:
        """A value of the body, which is required unless it has a default."""
        body = self.body if isinstance(self.body, dict) else {}
        value = body.get(name)
        if value is None:
            if default is ...:
                self._wrong("body", name, "Field required", "missing")
                return kind()
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self._wrong(
                "body", name, f"Input should be a valid {_NAMES[kind]}", f"{_NAMES[kind]}_type"
            )
            return kind()
        return value

    def parsed(self, name: str, parse: Callable[[str], Any], what: str, default: Any = ...) -> Any:
        """A string of the body that is parsed, such as a time."""
        text = self.field(name, str, default)
        if not isinstance(text, str) or any(each["loc"][1] == name for each in self.problems):
            return text
        try:
            return parse(text)
        except ValueError:
            self._wrong("body", name, f"Input should be a valid {what}", f"{what}_parsing")
            return None

    def price(self, name: str, default: Any = ...) -> Any:
        """A price of the body ("$25.60") in cents."""
        return self.parsed(name, cents_of, "price", default)

    def moment(self, name: str, default: Any = ...) -> Any:
        """A time of the body (ISO 8601) as Unix time."""
        return self.parsed(name, seconds_of, "datetime", default)

    def asked(self, name: str, default: str | None = None) -> str:
        """A value of the query, which is required unless it has a default."""
        value = self.query.get(name, default)
        if value is None:
            self._wrong("query", name, "Field required", "missing")
            return ""
        return value

    def one_of(self, name: str, allowed: Sequence[str], default: str = "") -> str:
        """A value of the query that must be among `allowed`."""
        value = self.query.get(name, default)
        if value and value not in allowed:
            words = " or ".join(f"'{each}'" for each in allowed)
            self._wrong("query", name, f"Input should be {words}", "enum")
        return value

    def several(self, name: str, allowed: Sequence[str] = ()) -> list[str]:
        """A list in the query, separated by commas."""
        values = [each for each in self.query.get(name, "").split(",") if each]
        if allowed and any(each not in allowed for each in values):
            self._wrong("query", name, "Input should be one of the known values", "enum")
        return values

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """An integer of the query."""
        text = self.query.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            self._wrong("query", name, "Input should be a valid integer", "int_parsing")
            return default
        if not least <= value <= most:
            word = (
                f"greater than or equal to {least}"
                if value < least
                else f"less than or equal to {most}"
            )
            self._wrong("query", name, f"Input should be {word}", "value_error")
        return value

    def wrong(self, name: str, message: str, kind: str = "value_error") -> None:
        """Records a value of the body as wrong."""
        self._wrong("body", name, message, kind)

    def _wrong(self, place: str, name: str, message: str, kind: str) -> None:
        # A field has one problem only; a missing field is not checked further.
        if not any(each["loc"] == [place, name] for each in self.problems):
            self.problems.append(problem(place, name, message, kind))

    def checked(self) -> None:
        """Raises Refused if a field was wrong."""
        if self.body is not None and not isinstance(self.body, dict):
            raise invalid(problem("body", "", "Input should be a valid dictionary", "dict_type"))
        if self.problems:
            raise invalid(*self.problems)


def page(
    request: Request, entries: list[dict[str, Any]], sorting: dict[str, str], size: int
) -> dict[str, Any]:
    """One page of a listing, with the cursor of the next.

    Args:
        request: May have `limit`, `next_cursor`, `sort_by` and `sort_dir`.
        entries: All entries.
        sorting: The entry's field for each `sort_by`. The first one is the default.
        size: The default page size.
    """
    limit = request.number("limit", size, 1, 100)
    by = request.one_of("sort_by", tuple(sorting), next(iter(sorting)))
    backwards = request.one_of("sort_dir", ("asc", "desc"), "desc") == "desc"
    request.checked()
    rows = [(entry[sorting[by]], entry["fid"], entry) for entry in entries]
    rows.sort(key=lambda row: row[:2], reverse=backwards)
    if cursor := request.query.get("next_cursor"):
        last = _opened(cursor)
        rows = [r for r in rows if ([*r[:2]] < last if backwards else [*r[:2]] > last)]
    shown, more = rows[:limit], len(rows) > limit
    token = _sealed([*shown[-1][:2]]) if more else None
    return {"data": [row[2] for row in shown], "next_cursor": token}


def _sealed(last: list[str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(last).encode()).decode()


def _opened(cursor: str) -> list[str]:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor))
    except (binascii.Error, ValueError):
        found = None
    if not isinstance(found, list):
        raise Refused(400, "Invalid cursor")
    return found
