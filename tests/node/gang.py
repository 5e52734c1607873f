"""A small real gang for tests: a rendezvous server and member links on loopback; the nodes only pretend to work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from flowlite.node.protocol.messages import GangSettings
from flowlite.node.rendezvous.member_client import MemberClient
from flowlite.node.rendezvous.server import RendezvousServer
from flowlite.node.rendezvous.supervisor_client import SupervisorClient

SECRET = b"0123456789abcdef" * 4


def settings(nodes: int = 2, processes: int = 2, attempt: int = 1, **changes: Any) -> GangSettings:
    """Settings with a quick beat. Nobody is given up for a pause of this machine."""
    values: dict[str, Any] = {
        "beat": 0.1,
        "lost_after": 20.0,
        "fence_after": 30.0,
        "join_timeout": 60.0,
        "linger": 30.0,
        "grace": 1.0,
    }
    return GangSettings(
        "task-1",
        attempt,
        tuple(f"i-{n:04}" for n in range(nodes)),
        processes,
        **{**values, **changes},
    )


class FakeMaster:
    """A master port that is only a number."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.proved = 0
        self.open = False

    def prove(self) -> int:
        if self.error:
            raise OSError(self.error)
        self.proved += 1
        self.open = True
        return 29500

    def close(self) -> None:
        self.open = False


class FakeNode:
    """A node whose workers are entries in a list; `work` decides how each ends."""

    def __init__(
        self,
        gang: GangSettings,
        rank: int,
        directory: Path | None = None,
        work: Callable[[FakeNode, int], Awaitable[Mapping[str, Any]]] | None = None,
        **facts: Any,
    ) -> None:
        self.gang = gang
        self.rank = rank
        self.directory = directory
        self.work = work or ends_well
        self.more_facts = facts
        self.calls: list[str] = []
        self.link: MemberClient | None = None
        self.go: Mapping[str, Any] | None = None
        self.stopping = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._streams: dict[str, Path] = {}

    def facts(self) -> dict[str, Any]:
        return {
            "hostname": f"host-{self.rank}",
            "python_minor": "3.11",
            "code": "c0de",
            "gpus": {"count": 8, "kind": "H100"},
            "clock": time.time(),
            "disk_free_bytes": 500e9,
            "disk_total_bytes": 1000e9,
            "agent": "a9e",
            **self.more_facts,
        }

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append("prepare")
        return {}

    async def start(self, go: Mapping[str, Any]) -> None:
        self.calls.append("start")
        self.go = go
        per_node = self.gang.processes_per_node
        for rank in range(self.rank * per_node, (self.rank + 1) * per_node):
            if self.directory is not None:
                for stream in ("out", "err", "result"):
                    self._streams[f"{rank}.{stream}"] = self.directory / f"r{rank}.{stream}"
            self._workers.append(asyncio.create_task(self._worker(rank)))

    async def _worker(self, rank: int) -> None:
        began = time.time()
        ended = {
            "code": 0,
            "signal": None,
            "failure": None,
            "tail": [],
            **await self.work(self, rank),
        }
        sizes = {
            stream: path.stat().st_size if path.exists() else 0
            for stream in ("out", "err", "result")
            if (path := self._streams.get(f"{rank}.{stream}")) is not None
        }
        assert self.link is not None
        self.link.report_worker(
            {
                "rank": rank,
                "local_rank": rank % self.gang.processes_per_node,
                "node": self.rank,
                "sizes": sizes,
                "started": began,
                "ended": time.time(),
                **ended,
            }
        )

    async def stop(self, reason: str, grace: float) -> None:
        self.calls.append("stop")
        self.stopping.set()
        await asyncio.gather(*self._workers)

    def streams(self) -> Mapping[str, Path]:
        return self._streams

    def append(self, rank: int, stream: str, data: bytes) -> None:
        """Write as a worker would."""
        with open(self._streams[f"{rank}.{stream}"], "ab") as file:
            file.write(data)


async def ends_well(node: FakeNode, rank: int) -> Mapping[str, Any]:
    return {}


async def runs_until_stopped(node: FakeNode, rank: int) -> Mapping[str, Any]:
    await node.stopping.wait()
    return {"code": None, "signal": 15}


class Gang:
    """Server, members and a supervisor, each reachable by a test."""

    def __init__(
        self, gang: GangSettings, nodes: list[FakeNode], master: FakeMaster | None = None
    ) -> None:
        self.settings = gang
        self.nodes = nodes
        self.master = master or FakeMaster()
        self.server = RendezvousServer(gang, SECRET, bind="127.0.0.1", master=self.master)
        self.serving: asyncio.Task[str] | None = None
        self.members: list[asyncio.Task[None]] = []
        self.events: list[dict[str, Any]] = []
        self.streams: dict[str, bytearray] = {}
        self.supervisor: SupervisorClient | None = None
        self.leader = ("127.0.0.1", 0)

    async def __aenter__(self) -> Gang:
        self.leader = ("127.0.0.1", await self.server.start())
        self.serving = asyncio.create_task(self.server.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.members:
            task.cancel()
        if self.supervisor is not None:
            await self.supervisor.close()
        await asyncio.gather(*self.members, return_exceptions=True)
        await self.server.close()
        assert self.serving is not None
        await self.serving

    def join(self, *ranks: int, leader: tuple[str, int] | None = None) -> None:
        """Let these nodes (all, if none is named) join."""
        for rank in ranks or range(len(self.nodes)):
            self.members.append(self.join_as(self.nodes[rank], leader=leader))

    def join_as(
        self,
        node: FakeNode,
        incarnation: str = "",
        secret: bytes = SECRET,
        leader: tuple[str, int] | None = None,
    ) -> asyncio.Task[None]:
        """Let one node join."""
        link = MemberClient(
            node.gang,
            secret,
            node.gang.roster[node.rank],
            incarnation or os.urandom(4).hex(),
            leader or self.leader,
            node,
        )
        node.link = link
        return asyncio.create_task(link.run())

    def attach(self, leader: tuple[str, int] | None = None, **options: Any) -> SupervisorClient:
        """A supervisor that keeps what it gets in `streams`."""
        address = leader or self.leader

        def keep(rank: int, node: int, stream: str, offset: int, when: float, blob: bytes) -> None:
            kept = self.streams.setdefault(f"{rank}.{stream}", bytearray())
            assert len(kept) == offset
            kept += blob

        self.supervisor = SupervisorClient(
            task=self.settings.task,
            attempt=self.settings.attempt,
            secret=options.pop("secret", SECRET),
            dial=lambda: asyncio.open_connection(*address),
            on_chunk=keep,
            offsets=lambda: {name: len(kept) for name, kept in self.streams.items()},
            beat=0.1,
            **options,
        )
        return self.supervisor

    async def until(self, *kinds: str, within: float = 60.0) -> dict[str, Any]:
        """Follow events until one of these kinds; gives it."""
        assert self.supervisor is not None
        async with asyncio.timeout(within), contextlib.aclosing(self.supervisor.events()) as events:
            async for event in events:
                self.events.append(event)
                if event["kind"] in kinds:
                    return event
        raise AssertionError(f"the link ended before {kinds}")

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]


def make(
    nodes: int = 2, processes: int = 2, *, directory: Path | None = None, **changes: Any
) -> Gang:
    """A gang of fake nodes; `work` and settings may be changed."""
    work = changes.pop("work", None)
    gang = settings(nodes, processes, **changes)
    return Gang(gang, [FakeNode(gang, rank, directory, work) for rank in range(nodes)])
