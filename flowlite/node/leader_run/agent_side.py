"""The agent's side of a gang that node 0 leads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import distributed_modes
from ..config.agent_config import AgentConfig, AttemptPaths
from ..system import node_facts, sidecar
from . import context, requirements

_START_SECONDS = 60.0


class LeaderRun:
    """What an agent does for such a gang on its node. Does nothing in other modes."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        self._config = config
        self._paths = paths
        self._relay: asyncio.subprocess.Process | None = None
        self.is_led = config.mode in distributed_modes.LED

    async def serve(self) -> dict[str, int]:
        """On node 0: starts the relay. Returns what the other nodes need to know. Raises OSError."""
        if not self.is_led:
            return {}
        directory = self._paths.directory
        self._relay = await sidecar.start(
            "gang", "relay", str(directory), log=directory / "relay.log"
        )
        assert self._relay.stdout is not None
        told: Mapping[str, Any] = {}
        with contextlib.suppress(ValueError, TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                told = json.loads(await self._relay.stdout.readline())
        if "port" not in told:
            why = told.get("error") or f"see {directory}/relay.log on node 0"
            raise OSError(f"what connects the nodes did not start: {why}")
        return {"gang": int(told["port"])}

    async def missing(self) -> str:
        """Checks before GO what this node lacks for the mode. Returns that and what to do, or "" if nothing.

        A container's image cannot be checked before the call begins.
        """
        if not self.is_led or self._config.container is not None:
            return ""
        return await requirements.missing(self._config)

    def order(self, orders: Sequence[dict[str, Any]], go: Mapping[str, Any]) -> None:
        """Completes the orders of this node's workers."""
        if self.is_led:
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
        relay, self._relay = self._relay, None
        if relay is not None:
            assert relay.stdin is not None
            relay.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                relay.kill()
            await relay.wait()
