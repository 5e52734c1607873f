"""Refusals, in the forms the API has for them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any


class Refused(Exception):
    """A request that gets something else than a result.

    Args:
        status: HTTP status.
        detail: A sentence, or the list of wrong fields.
        headers: Headers on top of the usual ones.
    """

    def __init__(
        self, status: int, detail: str | list[dict[str, Any]], headers: Mapping[str, str] = {}
    ) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.headers = dict(headers)


def business(text: str) -> Refused:
    """Understood, and against the rules."""
    return Refused(400, text)


def unauthorized(text: str) -> Refused:
    """No key, or one that counts for nothing."""
    return Refused(401, text, {"WWW-Authenticate": "Bearer"})


def forbidden(text: str) -> Refused:
    """A good key that may not do this."""
    return Refused(403, text)


def missing(what: str) -> Refused:
    """Nothing has that id."""
    return Refused(404, f"{what} not found")


def invalid(*problems: dict[str, Any]) -> Refused:
    """Fields that are not of the form."""
    return Refused(422, list(problems))


def problem(place: str, field: str, message: str, kind: str) -> dict[str, Any]:
    """One wrong field: of the "body", the "query" or the "path"."""
    return {"loc": [place, field], "msg": message, "type": kind}


def failure_text(status: int) -> str:
    """What a gateway says, that has never heard of JSON."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown Error"
    if status == 500:
        return "Internal Server Error"
    return f"<html><head><title>{status} {phrase}</title></head><body>{phrase}</body></html>"
