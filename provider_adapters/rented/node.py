"""The agent's settings on a rented machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite import python_request
from flowlite.provider import Instance, NodeSettings, Plan
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
    """The settings, from first contact (`Met.data`) and the plan's options "python_spec", "container", "workdir".

    Args:
        preemption: As `NodeSettings.preemption`.
        lease_seconds: How long the machine stays up without an agent, once it has had one.
        volumes: As `NodeSettings.volumes`.
    """
    data, options = instance.data, plan.options
    wanted, container = options.get("python_spec"), options.get("container")
    return NodeSettings(
        home=str(data["home"]),
        python=str(data["python"]),
        bind=instance.address,
        workdir=options.get("workdir"),
        environment={"FLOW_TASK_ID": instance.task_id},
        volumes=tuple(volumes),
        cache=f"{data['root']}/blobs",
        python_spec=wanted if container else python_request.for_node(wanted, _version(data)),
        container=container,
        lease={"file": LEASE_FILE, "seconds": lease_seconds},
        preemption=preemption,
    )


def lease_seconds(retry_pause: float, setting: float = LEASE_SECONDS) -> float:
    """A lease that outlasts the longest pause between two attempts and the start of the second."""
    return max(setting, retry_pause + _BETWEEN)


def _version(data: Mapping[str, Any]) -> str:
    """The version of the Python that was chosen."""
    return next((str(each[1]) for each in data["pythons"] if each[0] == data["python"]), "")
