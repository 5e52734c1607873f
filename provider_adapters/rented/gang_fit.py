"""Which gangs of machines may be kept for another task, and which tasks they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowlite.provider import LaunchIntent, Plan
from provider_adapters.rented.ledger import hash_of

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

LONGER_LIFE = 86400.0
"""How much later than its first task needs it a machine that may be handed on may end, in seconds."""
CONTAINER = "the container of a task ends with it"
# Of a plan's options, those in which plans of tasks that may share machines differ.
_VARYING = frozenset({"places", "name", "limit_price"})
# What is attached to a machine, or runs with it, stays with its task. An element of an array knows its number.
_STAYING = ("volumes", "container", "step_container", "reservation_ends", "array")


def why_not_kept(config: TaskConfig) -> str:
    """Why the machines of a task are not kept for the next one, in words; "" if nothing speaks against it."""
    if config.image:
        return CONTAINER
    if config.volumes:
        return "volumes stay with their task"
    if config.is_elastic:
        return "only gangs of one size are kept"
    return ""


def fits(intent: LaunchIntent, *same: Any) -> str:
    """What the machines of a launch have to fit; "" if they are only for its task.

    Args:
        same: What else has to be the same at this cloud, JSON only.
    """
    plan = Plan.from_json(intent.plan)
    whole = intent.count == intent.fewest == plan.machines and not intent.beside
    if not whole or plan.min_instances or plan.warm_seconds <= 0:
        return ""
    if any(plan.options.get(name) for name in _STAYING):
        return ""
    return hash_of(
        {
            "type": plan.instance_type,
            "nodes": [plan.num_instances, plan.spares],
            "same": [plan.spot, *same],
            "settings": plan.settings,
            "options": {k: v for k, v in plan.options.items() if k not in _VARYING},
        }
    )
