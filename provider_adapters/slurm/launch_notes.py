"""Reads the ledger's notes on a launch: its nodes, those of them that are lost or keep files, and its job's values."""

from __future__ import annotations

from typing import Any

from flowlite.node.config import fencing
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.rented.kept_gangs import as_held
from provider_adapters.rented.ledger import Call, Launch


def frozen_of(launch: Launch, call: Call) -> dict[str, Any]:
    """The frozen values that the job of a call was made from."""
    return dict(call.detail.get("frozen") or launch.frozen)


def given(launch: Launch) -> list[Instance]:
    """The nodes that were handed out, with their data of that time, as nodes of the task that has them now."""
    return [as_held(Instance.from_json(each), launch) for each in launch.notes.get("given", ())]


def run_of(launch: Launch) -> int:
    """The run of the job (its number of restarts) to which they belonged; -1 before."""
    return int(launch.notes.get("restart", -1))


def outlives_nodes(launch: Launch) -> bool:
    """Whether its job goes on with the nodes that are left when one fails (`--no-kill`)."""
    return bool(launch.frozen.get("least"))


def taken_out(launch: Launch) -> dict[str, tuple[str, float]]:
    """The nodes that its job had and does not have any more, by id: why, and since when."""
    found = launch.notes.get("taken_out", {})
    return {name: (str(why), float(at)) for name, (why, at) in found.items()}


def given_up(launch: Launch) -> dict[str, float]:
    """Nodes that did not answer the supervisor, by id: since when."""
    return {name: float(at) for name, at in launch.notes.get("given_up", {}).items()}


def lost_nodes(launch: Launch) -> dict[str, tuple[str, float]]:
    """The nodes without which its job goes on, by id: why, and since when.

    Slurm has taken them out of the job, or they have been given up for so long that they have stopped their workers.
    """
    grace, now = float(launch.frozen.get("grace", 0.0)), clock.now()
    stopped = {
        name: fencing.replaced_from(since, fencing.FENCE_AFTER, grace)
        for name, since in given_up(launch).items()
    }
    hosts = {each.id: each.data["host"] for each in given(launch)}
    fenced = {
        name: (f"its host {hosts[name]} does not answer, and has stopped its workers by itself", at)
        for name, at in stopped.items()
        if at <= now
    }
    return {**fenced, **taken_out(launch)}


def unmet(launch: Launch) -> list[str]:
    """The hosts of its job that did not answer when it started, and are no nodes of the gang."""
    return list(launch.notes.get("unmet", ()))


def has_lost_its_script(launch: Launch) -> bool:
    """Whether the first node of its job has failed. The script is gone with it, and the job would not end by itself."""
    out = taken_out(launch)
    return any(not each.data["nodeid"] and each.id in out for each in given(launch))


def retained(launch: Launch) -> list[str]:
    """The nodes from which not all files of the ranks were fetched."""
    return list(launch.notes.get("retained", ()))
