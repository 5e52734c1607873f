"""The fake Mithril against the API's own OpenAPI document.

The fake has the facts of the document in a table. It refuses requests that are not of its shapes, and notes replies of
its own that are not: the fixture `mithril` fails then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowlite.testing.cloud.mithril import shapes
from flowlite.testing.cloud.mithril.box import PaperMithril
from flowlite.testing.cloud.mithril.shapes import OPERATIONS, reply_problems
from tests.testing_cloud.mithril_client import Client
from tests.testing_cloud.openapi import table_of, written


def test_the_table_has_the_facts_of_the_document(openapi: dict[str, Any]) -> None:
    table = Path(shapes.__file__).with_name("shapes.json").read_text()
    assert table == written(table_of(openapi))


def test_every_listing_without_conditions_is_as_documented(mithril: PaperMithril) -> None:
    client = Client(mithril)
    client.running()
    called = set()
    for action, operation in OPERATIONS.items():
        if operation.method == "GET" and "{" not in operation.path:
            query = {"project": client.project, "instance_type": client.type_fid()}
            reply = client.http.get(operation.path, params=query)
            assert reply.status_code == 200, (action, reply.text)
            called.add(action)
    assert len(called) >= 18


@pytest.mark.parametrize(
    ("status", "change", "words"),
    [
        (201, {"status": "Lost"}, "'Lost'"),
        (201, {"surplus": 1}, "surplus"),
        (201, {"fid": None}, "Input should be a valid string, and is None"),
        (201, {"instance_quantity": True}, "Input should be a valid int"),
        (201, {"launch_specification": {"volumes": []}}, "'ssh_keys'"),
        (200, {}, "never gives 200"),
    ],
)
def test_a_wrong_reply_is_noticed(
    mithril: PaperMithril, status: int, change: dict[str, Any], words: str
) -> None:
    body = Client(mithril).try_bid().json()
    assert not reply_problems("create_bid", 201, body)
    assert words in " ".join(reply_problems("create_bid", status, {**body, **change}))


def test_a_body_where_there_is_none_and_an_odd_error_are_noticed() -> None:
    assert reply_problems("cancel_bid", 204, {"ok": True})
    assert reply_problems("cancel_bid", 404, {"error": "gone"})
    assert reply_problems("create_bid", 422, {"detail": "wrong"})


def test_a_wrong_reply_of_the_fake_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowlite.testing.cloud.mithril.operations.users import People

    monkeypatch.setattr(People, "get_me", lambda self, request: (200, {"fid": 1}))
    with PaperMithril() as cloud:
        reply = Client(cloud).http.get("/v2/me")
        assert (reply.status_code, "a defect of the fake" in reply.text) == (500, True)
        assert cloud.service.wrong_replies
