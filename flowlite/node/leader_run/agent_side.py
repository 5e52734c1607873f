"""The agent's side of a gang that node 0 leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config import distributed_modes
from ..config.agent_config import AgentConfig, AttemptPaths
from ..sidecar.agent_side import Sidecar
from ..sidecar.process_side import SidecarFailed
from ..system import node_facts

_START_SECONDS = 60.0
_END_SECONDS = 1.0


class LeaderRun:
    """What an agent does for such a gang on its node. Does nothing, and imports nothing, in other modes."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        self._config = config
        self._paths = paths
        self._relay = Sidecar("the process that connects the nodes", paths.directory / "relay.log")
        self.is_led = config.mode in distributed_modes.LED

    async def serve(self) -> dict[str, int]:
        """On node 0: starts the relay. Returns what the other nodes need to know. Raises OSError."""
        if not self.is_led:
            return {}
        try:
            report = await self._relay.start(
                "gang", "relay", str(self._paths.directory), seconds=_START_SECONDS
            )
        except SidecarFailed as error:
            raise OSError(f"the nodes of this task cannot be connected: {error}") from error
        return {"gang": int(report["port"])}

    async def missing(self) -> str:
        """Checks before GO what this node lacks for the mode. Returns that and what to do, or "" if nothing.

        A container's image cannot be checked before the call begins.
        """
        if not self.is_led or self._config.container is not None:
            return ""
        from . import requirements

        return await requirements.missing(self._config)

    def order(self, orders: Sequence[dict[str, Any]], go: Mapping[str, Any]) -> None:
        """Completes the orders of this node's workers."""
        if self.is_led:
            from . import context

            context.note(self._paths, go, node_facts.cores())
            for order in orders:
                order["gang"] = str(self._paths.directory)

    def worker_ended(self) -> None:
        """Cleans up after the worker of this node and all processes below it have ended."""
        if self._config.mode == distributed_modes.RAY:
            from . import ray_cluster

            ray_cluster.forget(self._paths.directory)

    async def end(self) -> None:
        """Ends the relay, after all workers have ended."""
        await self._relay.end(_END_SECONDS)
