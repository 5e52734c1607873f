"""`flow hosts check`, where a host answers what no program of ours says: it is named, and the others are checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provider_adapters.ssh import checking
from provider_adapters.ssh.pools import Host

GOOD, BAD = (
    Host(name, at, "lab", {}, private_ip="10.0.0.1") for at, name in enumerate(("good", "bad"))
)
ANSWERS = [
    ("serve", "12"),
    ("serve", "99999 5"),
    ("serve", "22 -1"),
    ("serve", "9" * 5000 + " 1"),
    ("serve", "\x1b[2J"),
    ("reach", "["),
    ("reach", "[" * 100_000),
    ("reach", "[]"),
    ("reach", json.dumps({"nobody": "x", "good": ["\x1b[2J"]})),
    ("reach", json.dumps({"good": "x" * 1_000_000})),
]


@pytest.mark.parametrize(("what", "answer"), ANSWERS, ids=range(len(ANSWERS)))
def test_a_host_that_answers_nonsense(
    what: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def run(host: Host, found: Any, *arguments: str) -> str:
        if host is BAD and arguments[0] == what:
            return answer
        if arguments[0] == "end":
            ended.append(f"{host.name} {arguments[1]}")
        return {"serve": "4000 77", "reach": "{}"}.get(arguments[0], "")

    monkeypatch.setattr(checking, "_run", run)
    monkeypatch.setattr(checking, "_forwarding", lambda able, ports: [])
    told = checking._between([GOOD, BAD], {})
    assert {each.host for each in told} <= {"bad"}
    assert told or "nobody" in answer
    assert all(len(each.what) < 3000 for each in told)
    # Listeners end with the check.
    assert "good 77" in ended
