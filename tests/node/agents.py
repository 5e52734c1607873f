"""Real agents on this machine: N processes as a supervisor would start them, followed through a real link."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowlite.node.config.agent_config import AgentConfig, AttemptPaths
from flowlite.node.forkserver import client, registry
from flowlite.node.protocol import tls
from flowlite.node.rendezvous.supervisor_client import SupervisorClient
from flowlite.node.system import processes
from flowlite.supervise.attempt import certificates
from tests.helpers import assert_no_process_left, eventually, kill_processes_of

SECRET = secrets.token_hex(32).encode()


def agent_command(directory: Path) -> list[str]:
    """As a connection starts an agent."""
    return processes.own_command(sys.executable, "agent", str(directory), flags=("-I", "-S"))


class RealGang:
    """One attempt of a gang of real agents.

    Args:
        home: Where the nodes' directories are made.
        call: `AgentConfig.call`.
        options: Fields of AgentConfig that differ from the defaults here.
    """

    def __init__(
        self,
        home: Path,
        call: Mapping[str, Any],
        *,
        nodes: int = 2,
        processes_per_node: int = 2,
        attempt: int = 1,
        task: str = "",
        shared: bool = True,
        **options: Any,
    ) -> None:
        self.task = task or f"t{secrets.token_hex(5)}"
        self.home = home
        self.attempt = attempt
        self.agents: list[subprocess.Popen[bytes]] = []
        self.events: list[dict[str, Any]] = []
        self.streams: dict[str, bytearray] = {}
        self.link: SupervisorClient | None = None
        self.released_after = 0.0
        roster = [f"i-{node:03}" for node in range(nodes)]
        self.configs = [
            AgentConfig(
                **{
                    "task": self.task,
                    "name": "test",
                    "attempt": attempt,
                    "instance": instance,
                    "roster": roster,
                    "processes_per_node": processes_per_node,
                    "call": dict(call),
                    "python": sys.executable,
                    "grace": 1.0,
                    "beat": 0.2,
                    "lost_after": 10.0,
                    "fence_after": 20.0,
                    "join_timeout": 60.0,
                    "linger": 60.0,
                    "warm_socket": client.socket_path(self.task) if shared else None,
                    "ports_dir": str(home / "ports"),
                    **options,
                }
            )
            for instance in roster
        ]
        self.paths = [AttemptPaths(home / each.instance / f"a{attempt}") for each in self.configs]

    def __enter__(self) -> RealGang:
        for config, paths in zip(self.configs, self.paths, strict=True):
            paths.directory.mkdir(parents=True)
            paths.config.write_text(config.to_json())
            paths.secret.write_bytes(SECRET)
        if self.configs[0].tls:
            made = certificates.make()
            for paths in self.paths:
                paths.certificate.write_bytes(made.certificate)
            self.paths[0].certificate_key.write_bytes(made.key or b"")
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in self.agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(90)
        kill_processes_of(self.task)
        for agent in self.agents:
            agent.wait(90)

    def start_agent(self, node: int, **environment: str) -> subprocess.Popen[bytes]:
        """Start one agent."""
        agent = subprocess.Popen(
            agent_command(self.paths[node].directory),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "FLOW_TASK_ID": self.task, **environment},
        )
        self.agents.append(agent)
        return agent

    def start(self, **environment: str) -> None:
        """Start all agents; the leader's place is passed on by `follow`, as a supervisor does."""
        for node in range(len(self.configs)):
            self.start_agent(node, **environment)

    def tell_leader(self) -> dict[str, Any]:
        """Pass the leader's place on."""
        leader = self.paths[0].leader
        eventually(leader.exists, what="leader.json")
        for paths in self.paths[1:]:
            paths.leader.write_bytes(leader.read_bytes())
        return json.loads(leader.read_bytes())  # type: ignore[no-any-return]

    def open_link(self) -> SupervisorClient:
        place = self.tell_leader()

        def keep(rank: int, node: int, stream: str, offset: int, when: float, blob: bytes) -> None:
            kept = self.streams.setdefault(f"{rank}.{stream}", bytearray())
            assert len(kept) == offset
            kept += blob

        self.link = SupervisorClient(
            task=self.task,
            attempt=self.attempt,
            secret=SECRET,
            dial=lambda: asyncio.open_connection(place["address"], place["port"]),
            on_chunk=keep,
            offsets=lambda: {name: len(kept) for name, kept in self.streams.items()},
            beat=0.2,
            # A busy machine is none that is gone.
            silence=60.0,
            new_tls=tls.client(self.paths[0].certificate) if self.configs[0].tls else None,
        )
        return self.link

    async def until(self, *kinds: str, within: float = 90.0) -> dict[str, Any]:
        """Follow events until one of these kinds; gives it."""
        link = self.link or self.open_link()
        async with asyncio.timeout(within), contextlib.aclosing(link.events()) as events:
            async for event in events:
                self.events.append(event)
                if event["kind"] in kinds:
                    return event
        raise AssertionError(f"the link ended before {kinds}: {self.events}")

    async def finish(self, within: float = 90.0) -> dict[str, Any]:
        """Follow to the end, collect every byte, release; gives the `ended` event."""
        ended = await self.until("ended", within=within)
        await self.finish_after_end()
        return ended

    async def finish_after_end(self, within: float = 60.0) -> None:
        """Collect every byte, release."""
        until = time.monotonic() + within
        while not self.complete() and time.monotonic() < until:
            await asyncio.sleep(0.005)
        assert self.link is not None
        await self.link.release()
        await self.link.close()

    def complete(self) -> bool:
        """Whether all bytes of all workers that ended are here."""
        return all(
            len(self.streams.get(f"{each['rank']}.{stream}", b"")) >= size
            for each in self.workers()
            for stream, size in each["sizes"].items()
        )

    def run(self, **environment: str) -> dict[str, Any]:
        """From start to release; gives the `ended` event."""
        self.start(**environment)
        return asyncio.run(self.finish())

    def workers(self) -> list[dict[str, Any]]:
        """The worker events by rank."""
        found = [event for event in self.events if event["kind"] == "worker"]
        return sorted(found, key=lambda event: int(event["rank"]))

    def text(self, rank: int, stream: str = "out") -> str:
        return self.streams.get(f"{rank}.{stream}", bytearray()).decode()

    def report(self, node: int) -> dict[str, Any]:
        """The final report of an agent, once there is one."""
        path = self.paths[node].report
        eventually(path.exists, what=f"report of node {node}")
        return json.loads(path.read_bytes())  # type: ignore[no-any-return]

    def logs(self) -> str:
        """What the agents said, for the message of a failed assertion."""
        return "\n".join(
            f"{path}: {path.read_text()}"
            for paths in self.paths
            for path in paths.directory.glob("*.log")
        )

    def assert_nothing_left(self, timeout: float = 60.0) -> None:
        """All agents have ended by themselves, and nothing of the task lives but, for a while, the fork server."""
        for agent in self.agents:
            agent.wait(timeout)
        registry.retire(self.configs[0].warm_socket or "/nonexistent")
        assert_no_process_left(self.task, timeout=timeout)
