"""What the ledger notes of a launch, read: the nodes that were handed out, and what their job was made from."""

from __future__ import annotations

from typing import Any

from flowlite.provider import Instance
from provider_adapters.rented.ledger import Call, Launch


def frozen_of(launch: Launch, call: Call) -> dict[str, Any]:
    """What the job of a call was made from."""
    return dict(call.detail.get("frozen") or launch.frozen)


def given(launch: Launch) -> list[Instance]:
    """The nodes that were handed out, as they were then."""
    return [Instance.from_json(each) for each in launch.notes.get("given", ())]


def run_of(launch: Launch) -> int:
    """Of which run of its job they were; -1 before."""
    return int(launch.notes.get("restart", -1))
