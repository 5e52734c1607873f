"""A request as the operations see it, and how its fields are checked: wrong ones get the list with status 422."""

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
        action: Name of the operation.
        path: Values from the path.
        query: Values after the question mark; several of a name with commas between them.
        body: What was sent, None for nothing.
        headers: By their names in lower case.
        key: Whose key it bears.
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
        """All that was given, by name."""
        given = self.body if isinstance(self.body, dict) else {}
        return {**self.path, **self.query, **given}

    def field(self, name: str, kind: type, default: Any = ...) -> Any:
        """A value of the body; without a default it must be there."""
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
        """A text of the body that means something else, such as a time."""
        text = self.field(name, str, default)
        if not isinstance(text, str) or any(each["loc"][1] == name for each in self.problems):
            return text
        try:
            return parse(text)
        except ValueError:
            self._wrong("body", name, f"Input should be a valid {what}", f"{what}_parsing")
            return None

    def price(self, name: str, default: Any = ...) -> Any:
        """Cents, from "$25.60"."""
        return self.parsed(name, cents_of, "price", default)

    def moment(self, name: str, default: Any = ...) -> Any:
        """Unix time, from ISO 8601."""
        return self.parsed(name, seconds_of, "datetime", default)

    def asked(self, name: str, default: str | None = None) -> str:
        """A value of the query; without a default it must be there."""
        value = self.query.get(name, default)
        if value is None:
            self._wrong("query", name, "Field required", "missing")
            return ""
        return value

    def one_of(self, name: str, allowed: Sequence[str], default: str = "") -> str:
        """A value of the query that must be one of some."""
        value = self.query.get(name, default)
        if value and value not in allowed:
            words = " or ".join(f"'{each}'" for each in allowed)
            self._wrong("query", name, f"Input should be {words}", "enum")
        return value

    def several(self, name: str, allowed: Sequence[str] = ()) -> list[str]:
        """Values of the query with commas between them."""
        values = [each for each in self.query.get(name, "").split(",") if each]
        if allowed and any(each not in allowed for each in values):
            self._wrong("query", name, "Input should be one of the known values", "enum")
        return values

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query."""
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
        """Notes a value of the body as wrong."""
        self._wrong("body", name, message, kind)

    def _wrong(self, place: str, name: str, message: str, kind: str) -> None:
        # Of a field that is missing there is no more to say.
        if not any(each["loc"] == [place, name] for each in self.problems):
            self.problems.append(problem(place, name, message, kind))

    def checked(self) -> None:
        """Raises Refused if anything was wrong."""
        if self.body is not None and not isinstance(self.body, dict):
            raise invalid(problem("body", "", "Input should be a valid dictionary", "dict_type"))
        if self.problems:
            raise invalid(*self.problems)


def page(
    request: Request, entries: list[dict[str, Any]], sorting: dict[str, str], size: int
) -> dict[str, Any]:
    """One page of a listing, and the cursor to the next.

    Args:
        request: May say `limit`, `next_cursor`, `sort_by` and `sort_dir`.
        entries: All of them.
        sorting: Which field of an entry a `sort_by` means; the first one is the usual.
        size: Entries on a page if the request does not say.
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
