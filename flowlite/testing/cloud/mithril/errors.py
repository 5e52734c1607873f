"""The API's error replies."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flowlite.testing.cloud.mithril.shapes import Problem


class Refused(Exception):
    """Raised for a request that gets an error reply.

    Args:
        status: The HTTP status.
        detail: A sentence, or the list of wrong fields.
        headers: Additional headers.
    """

    def __init__(
        self, status: int, detail: str | list[dict[str, Any]], headers: Mapping[str, str] = {}
    ) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.headers = dict(headers)


def business(text: str) -> Refused:
    """A valid request that breaks a rule."""
    return Refused(400, text)


def unauthorized(text: str) -> Refused:
    """No key, or an invalid one."""
    return Refused(401, text, {"WWW-Authenticate": "Bearer"})


def forbidden(text: str) -> Refused:
    """A valid key without the permission."""
    return Refused(403, text)


def missing(what: str) -> Refused:
    """No resource with that id."""
    return Refused(404, f"{what} not found")


def invalid(*problems: Problem) -> Refused:
    """Fields that do not match the schema."""
    return Refused(422, [each.to_json() for each in problems])


def failure_text(status: int) -> str:
    """An error page of a gateway, which is not JSON."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown Error"
    if status == 500:
        return "Internal Server Error"
    return f"<html><head><title>{status} {phrase}</title></head><body>{phrase}</body></html>"
