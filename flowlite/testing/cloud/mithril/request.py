"""A request as operations see it: of the shape that the document says. Wrong fields are listed with status 422."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowlite.testing.cloud.mithril.errors import Refused, invalid
from flowlite.testing.cloud.mithril.forms import cents_of, seconds_of
from flowlite.testing.cloud.mithril.records import ApiKey
from flowlite.testing.cloud.mithril.shapes import Problem


@dataclass
class Request:
    """One call.

    Attributes:
        action: The name of the operation.
        path: The path parameters.
        query: The query parameters that the document has, by their types.
        body: The body; empty if there was none.
        headers: The headers, with lower-case names.
        key: The API key of the request.
    """

    action: str
    path: dict[str, str]
    query: dict[str, Any]
    body: dict[str, Any]
    headers: dict[str, str]
    key: ApiKey | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters by name."""
        return {**self.path, **self.query, **self.body}

    def price(self, name: str) -> Any:
        """A price of the body ("$25.60") in cents; None if it is not given."""
        return self._parsed(name, cents_of, "price")

    def moment(self, name: str) -> Any:
        """A time of the body (ISO 8601) as Unix time; None if it is not given."""
        return self._parsed(name, seconds_of, "datetime")

    def _parsed(self, name: str, parse: Callable[[str], Any], what: str) -> Any:
        text = self.body.get(name)
        try:
            return None if text is None else parse(text)
        except ValueError:
            self.wrong(name, f"Input should be a valid {what}", f"{what}_parsing")
            return None

    def wrong(self, name: str, message: str, kind: str = "value_error") -> None:
        """Records a value of the body as wrong, though it is of the form that the document says."""
        self.problems.append(Problem(("body", name), message, kind))

    def checked(self) -> None:
        """Raises Refused if a field was wrong."""
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
    limit = request.query.get("limit", size)
    by = request.query.get("sort_by", next(iter(sorting)))
    backwards = request.query.get("sort_dir", "desc") == "desc"
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
