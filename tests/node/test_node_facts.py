"""What a node says of itself is what its leader understands, whatever the machine is like."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.node.protocol.message_check import FROM_MEMBER, check
from flowlite.node.system import node_facts

CALL = {"kind": "command", "argv": ["true"]}


def joins(home: Path) -> dict[str, Any]:
    """The facts of this machine, after they went through the leader's check."""
    facts = node_facts.facts(call=CALL, home=home, address=None, visible_gpus=None)
    body = {"instance": "i-1", "incarnation": "x", "facts": {**facts, **node_facts.surroundings()}}
    message = json.loads(json.dumps({"type": "join", "task": "t", "attempt": 1, **body}))
    assert check(message, FROM_MEMBER, "t") == "join"
    found: dict[str, Any] = message["facts"]
    return found


@pytest.mark.parametrize(
    ("limit", "said"), [(resource.RLIM_INFINITY, None), (0, 0), (8 << 20, 8 << 20)]
)
def test_any_limit_of_locked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, said: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    assert joins(tmp_path)["memlock_bytes"] == said


def test_file_systems_that_claim_to_have_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = SimpleNamespace(f_bavail=2**64 - 1, f_blocks=2**64 - 1, f_frsize=1 << 20)
    monkeypatch.setattr(os, "statvfs", lambda path: endless)
    facts = joins(tmp_path)
    names = ("disk_free_bytes", "disk_total_bytes", "shm_bytes")
    assert {facts[name] for name in names} == {2**63 - 1}
