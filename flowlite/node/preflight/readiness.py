"""The checks and reports of one node before GO.

They cover whether the node reaches the other nodes, whether the configured network interfaces exist, which versions it
has of the libraries that ranks communicate and compute with, and how much memory its GPUs have.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig
from ..rendezvous.member_client import PrepareError
from ..system import node_facts, processes
from ..system.library_versions import relevant, versions_of
from . import network_interfaces
from .connectivity import ConnectivityCheck

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..python_env.environments import Ready
    from .gpu_health import GpuHealth

# How long the end of an attempt waits for what the driver says of the GPUs.
_HEALTH_SECONDS = 6.0
# Time limit of the program that multiplies matrices, of which most is the import of torch.
_SPEED_SECONDS = 120.0


class Readiness:
    """The checks and reports of one node, from its join to GO."""

    def __init__(self, config: AgentConfig, secret: bytes, silence: Callable[[int], float]) -> None:
        """
        Args:
            silence: As for `ConnectivityCheck`.
        """
        self._config = config
        self._connectivity = ConnectivityCheck(
            config.task,
            config.attempt,
            config.node_rank,
            config.num_nodes,
            secret,
            silence=silence,
            longest=config.join_timeout,
        )
        self._cards: asyncio.Task[list[dict[str, Any]]] | None = None
        self._health: asyncio.Task[GpuHealth] | None = None
        self._found: asyncio.Task[tuple[dict[str, str] | None, bool]] | None = None

    async def begin(self, address: str | None) -> None:
        """Listen for connections of other nodes, and begin to query the GPUs and library versions.

        Args:
            address: The address of this node's interface towards the leader.
        """
        config = self._config
        await self._connectivity.open(config.leader_address if config.is_leader else address)
        if not config.setup:
            # Costs no time while this node waits for others. A setup may change versions, so with one it comes later.
            self._found = asyncio.create_task(self._versions())
        if self._has_gpus:
            from ..inspect import metrics

            self._cards = asyncio.create_task(asyncio.to_thread(metrics.gpus, config.visible_gpus))
            self._health = asyncio.create_task(self._read_health())

    def facts(self, home: Path, address: str | None) -> dict[str, Any]:
        """Returns the facts that this node reports when it joins.

        Args:
            home: The node's directory.
            address: The address of this node's interface towards the leader.
        """
        config = self._config
        found = node_facts.facts(
            call=config.call,
            home=home,
            address=address,
            visible_gpus=config.visible_gpus,
            python=(config.python_spec or {}).get("python"),
        )
        return {**found, **node_facts.surroundings(), "connectivity": self._connectivity.port}

    async def check_gpus(self) -> None:
        """Check that the node has its GPUs, and reaches them all. Raises PrepareError if not."""
        health = await asyncio.shield(self._health) if self._health is not None else None
        if health is not None and health.out_of_reach:
            raise PrepareError(health.out_of_reach, sick=True)
        config = self._config
        wrong = node_facts.wrong_gpus(config.gpus, node_facts.gpus(config.visible_gpus))
        if wrong:
            raise PrepareError(wrong, sick=bool(config.preflight))
        if config.preflight:
            for used, total in await self._memory() or ():
                if node_facts.lacks_memory(used, total):
                    taken = f"{used / 1e9:.1f} GB of {total / 1e9:.1f} GB"
                    raise PrepareError(f"{taken} of a GPU's memory are in use", sick=True)
            if health is not None and (errors := health.old_errors()):
                raise PrepareError(errors, sick=True)

    async def measure(self, order: Mapping[str, Any], python: str) -> dict[str, Any]:
        """Measure what `preflight=` asks for. Returns the facts that the leader compares (node/rendezvous/outliers.py).

        Args:
            order: The leader's order to prepare.
            python: The workers' Python.
        """
        config = self._config
        if not config.preflight:
            return {}
        if config.ports_dir is not None:
            return {"skipped": "no speed is compared, since the nodes share one machine"}
        found: dict[str, Any] = {}
        if config.container is not None:
            found["skipped"] = "no matrices are multiplied in a container"
        else:
            found |= await self._speed(python)
        if config.preflight == "full":
            found["links"] = await self._connectivity.measure(order)
        return found

    async def _speed(self, python: str) -> dict[str, Any]:
        """Runs the program that multiplies matrices. Raises PrepareError if it fails on a node with GPUs."""
        config = self._config
        environment = self._variables
        if config.visible_gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = config.visible_gpus
        command = processes.own_command(python, "speed")
        try:
            async with asyncio.timeout(_SPEED_SECONDS):
                code, said, _ = await processes.run_group(*command, env=environment)
        except TimeoutError:
            late = f"matrices are not multiplied within {_SPEED_SECONDS:.0f} s"
            raise PrepareError(late, sick=True) from None
        found = answer_of_speed(said, code)
        if "broken" in found:
            raise PrepareError(f"matrices cannot be multiplied: {found['broken']}", sick=True)
        if "error" in found and self._has_gpus:
            # It may be the same on each machine, so this one is not avoided.
            raise PrepareError(f"matrices cannot be multiplied: {found['error']}")
        if "speeds" not in found:
            return {"skipped": f"no speed was measured: {found.get('why') or found.get('error')}"}
        speeds = {str(name): float(speed) for name, speed in found["speeds"].items()}
        return {"unit": str(found["unit"]), "speeds": speeds}

    async def sickness(self) -> str:
        """Returns what has become wrong with the GPUs since this node joined; "" if nothing has, or it is not known."""
        if self._health is None or not self._health.done() or self._health.cancelled():
            return ""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                now = await self._read_health()
        except TimeoutError:
            return ""
        return "; ".join(now.troubles(self._health.result()))

    async def _read_health(self) -> GpuHealth:
        # Imported here, since most nodes have no GPU.
        from . import gpu_health

        return await asyncio.to_thread(gpu_health.read, self._config.visible_gpus)

    async def prove(self, order: Mapping[str, Any]) -> None:
        """Check that ranks can communicate. Raises PrepareError if they cannot."""
        if self._config.container is None:
            wrong = network_interfaces.wrong(
                self._variables, network_interfaces.names(), nccl=self._has_gpus
            )
            if wrong:
                raise PrepareError(wrong)
        await self._connectivity.reach(order)

    async def report(self, made: Ready | None) -> dict[str, Any]:
        """Returns the facts that the leader compares between nodes: see `consistency.COMPARED`.

        Args:
            made: The environment that was made for the workers on this node, if one was.
        """
        packages = None
        if made is not None and made.lock is not None:
            from ..python_env import environments

            packages = environments.packages_of(made.python)
        versions, talks = await (self._found or self._versions())
        return {
            "packages": packages,
            "versions": versions,
            "talks": talks,
            "gpu_memory": await self._memory(),
            "doubt": network_interfaces.doubtful(self._variables, network_interfaces.adapters())
            if self._has_gpus
            else None,
        }

    @property
    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self._config.environment}

    @property
    def _has_gpus(self) -> bool:
        return bool((self._config.gpus or {}).get("count"))

    def close(self) -> None:
        """Stop listening and cancel queries. Called before the workers start, and at the end. May be called again."""
        self._connectivity.close()
        # `_health` is compared with later readings.
        for task in (self._cards, self._found):
            if task is not None:
                task.cancel()

    async def _versions(self) -> tuple[dict[str, str] | None, bool]:
        config = self._config
        wanted, talks = relevant(config.call)
        if not wanted or (config.num_nodes == 1 and not self._has_gpus):
            return {}, talks
        # Not needed: an image is the same on all nodes, and packages that flowlite installed are compared one by one.
        if config.container is not None or config.python_spec is not None or not config.python:
            return None, talks
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        found = versions_of(config.python, self._variables, minor)
        return {name: version for name, version in found.items() if name in wanted}, talks

    async def _memory(self) -> list[list[int]] | None:
        """The memory of each GPU, as [used, total] in bytes; None where it is not known."""
        if self._cards is None:
            return None
        try:
            cards = await asyncio.shield(self._cards)
        except OSError:
            return None
        pairs = [(card["memory_used"], card["memory_total"]) for card in cards]
        return [[used, total] for used, total in pairs if used is not None and total] or None


def answer_of_speed(said: bytes, code: int) -> dict[str, Any]:
    """Returns the answer of the program that multiplies matrices; {"error": ...} if there is none.

    The answer is the last line. The Python may print others before it, from `sitecustomize` for example.
    """
    try:
        return dict(json.loads(said[said.rstrip().rfind(b"\n") + 1 :]))
    except (ValueError, TypeError):
        return {"error": f"the program that multiplies matrices ended with {code}"}
