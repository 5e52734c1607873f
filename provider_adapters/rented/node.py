"""The agent's settings on a rented machine."""

from __future__ import annotations

from typing import Any

from flowlite.provider import Instance, NodeSettings, Plan
from provider_adapters import pythons
from provider_adapters.rented.watchdog import LEASE_FILE

LEASE_SECONDS = 600.0
_BETWEEN = 120.0


def node_settings(
    plan: Plan,
    instance: Instance,
    *,
    preemption: dict[str, Any] | None = None,
    lease_seconds: float = LEASE_SECONDS,
    volumes: tuple[dict[str, Any], ...] = (),
) -> NodeSettings:
    """The settings, from `ReadyMachine.data` and the plan's options "python_spec", "container" and "workdir".

    Args:
        preemption: As `NodeSettings.preemption`.
        lease_seconds: How long the machine stays up without an agent, once it has had one.
        volumes: As `NodeSettings.volumes`.
    """
    data, options = instance.data, plan.options
    return NodeSettings(
        home=str(data["home"]),
        python=str(data["python"]),
        bind=instance.address,
        workdir=options.get("workdir"),
        environment={"FLOW_TASK_ID": instance.task_id},
        volumes=tuple(volumes),
        cache=f"{data['root']}/blobs",
        python_spec=pythons.spec_for_node(options, data),
        container=options.get("container"),
        lease={"file": LEASE_FILE, "seconds": lease_seconds},
        preemption=preemption,
    )


def lease_seconds(retry_pause: float, setting: float = LEASE_SECONDS) -> float:
    """A lease that outlasts the longest pause between two attempts and the start of the second."""
    return max(setting, retry_pause + _BETWEEN)
