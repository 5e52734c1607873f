"""Reads the ledger's notes on a launch: its nodes, those of them that keep files, and what their job was made from."""

from __future__ import annotations

from typing import Any

from flowlite.provider import Instance
from provider_adapters.rented.ledger import Call, Launch


def frozen_of(launch: Launch, call: Call) -> dict[str, Any]:
    """The frozen values that the job of a call was made from."""
    return dict(call.detail.get("frozen") or launch.frozen)


def given(launch: Launch) -> list[Instance]:
    """The nodes that were handed out, with their data of that time."""
    return [Instance.from_json(each) for each in launch.notes.get("given", ())]


def run_of(launch: Launch) -> int:
    """The run of the job (its number of restarts) to which they belonged; -1 before."""
    return int(launch.notes.get("restart", -1))


def retained(launch: Launch) -> list[str]:
    """The nodes from which not all files of the ranks were fetched."""
    return list(launch.notes.get("retained", ()))
