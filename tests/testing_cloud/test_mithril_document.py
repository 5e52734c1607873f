"""The fake Mithril against the API's own OpenAPI document.

In the other tests of the fake, the fixture `mithril` holds every reply against it.
"""

from __future__ import annotations

from typing import Any

import pytest

from flowlite.testing.cloud.mithril.box import PaperMithril
from flowlite.testing.cloud.mithril.routes import ROUTES
from tests.testing_cloud.mithril_client import Client
from tests.testing_cloud.openapi import Document


def test_every_operation_is_one_of_the_document(openapi: Document) -> None:
    for method, path, action in ROUTES:
        assert openapi.operations[action] == (method, path)


def test_every_listing_without_conditions_is_as_documented(
    openapi: Document, mithril: PaperMithril
) -> None:
    client = Client(mithril)
    client.running()
    called = set()
    for method, path, action in ROUTES:
        if method == "GET" and "{" not in path:
            query = {"project": client.project, "instance_type": client.type_fid()}
            reply = client.http.get(path, params=query)
            assert reply.status_code == 200, (action, reply.text)
            assert not openapi.problems(action, 200, reply.json())
            called.add(action)
    assert len(called) >= 18


@pytest.mark.parametrize(
    ("status", "change", "words"),
    [
        (201, {"status": "Lost"}, "'Lost'"),
        (201, {"surplus": 1}, "surplus"),
        (201, {"fid": None}, "None is not of type 'string'"),
        (200, {}, "never gives 200"),
    ],
)
def test_a_wrong_reply_is_noticed(
    openapi: Document, mithril: PaperMithril, status: int, change: dict[str, Any], words: str
) -> None:
    client = Client(mithril)
    body = client.try_bid().json()
    assert not openapi.problems("create_bid", 201, body)
    found = openapi.problems("create_bid", status, {**body, **change})
    assert words in " ".join(found)


def test_a_body_where_there_is_none_and_an_odd_error_are_noticed(openapi: Document) -> None:
    assert openapi.problems("cancel_bid", 204, {"ok": True})
    assert openapi.problems("cancel_bid", 404, {"error": "gone"})
    assert openapi.problems("create_bid", 422, {"detail": "wrong"})
