"""The router: nobody gets past it without the secret, and what one side says reaches the other."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.protocol.channel import Channel
from flowlite.node.protocol.framing import STEP_ROLE, ClientSession, Frame, Hello, encode
from flowlite.node.sbatch.router import Router

SECRET = b"s" * 32
SECONDS = 30.0


def config(nodes: int = 2, per_node: int = 2) -> AgentConfig:
    return AgentConfig(
        task="t1",
        name="t1",
        attempt=3,
        instance="i0",
        roster=[f"i{n}" for n in range(nodes)],
        processes_per_node=per_node,
        call={"kind": "command", "argv": ["x"], "batch": {"counts": [per_node] * nodes}},
    )


class Guest(Channel):
    """A worker or an srun of a test."""

    def __init__(
        self, *, secret: bytes = SECRET, task: str = "t1", attempt: int = 3, role: str = STEP_ROLE
    ) -> None:
        super().__init__(ClientSession(secret, Hello(task, role, "worker", attempt)))
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.over = asyncio.Event()
        self.opened = asyncio.Event()

    @classmethod
    async def come(cls, port: int, **how: Any) -> Guest:
        guest = cls(**how)
        guest.begin(socket.create_connection(("127.0.0.1", port)))
        return guest

    def say(self, **message: Any) -> None:
        self.send(encode(message))

    async def hear(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.heard.get(), SECONDS)

    def on_opened(self) -> None:
        self.opened.set()

    def on_frame(self, frame: Frame) -> None:
        self.heard.put_nowait({**frame.message, "blob": frame.blob})

    def on_closed(self, error: Exception | None) -> None:
        self.over.set()


async def worker(port: int, node: int, local: int) -> Guest:
    guest = await Guest.come(port)
    await asyncio.wait_for(guest.opened.wait(), SECONDS)
    guest.say(type="worker", node=node, local=local)
    return guest


async def srun(port: int, **wish: Any) -> Guest:
    guest = await Guest.come(port)
    await asyncio.wait_for(guest.opened.wait(), SECONDS)
    asked = {"nodes": None, "tasks": None, "per_node": None, "within": None}
    guest.say(type="step", argv=["x"], wish={**asked, **wish})
    return guest


@pytest.mark.parametrize("how", [{"secret": b"x" * 32}, {"task": "t2"}, {"attempt": 2}])
def test_strangers_are_turned_away(how: dict[str, Any]) -> None:
    async def go() -> None:
        router = Router(config(), SECRET, None)
        guest = await Guest.come(router.start(), **how)
        await asyncio.wait_for(guest.over.wait(), SECONDS)
        assert guest.heard.empty()
        router.close()

    asyncio.run(go())


def test_who_says_what_nobody_says_is_turned_away() -> None:
    async def go() -> None:
        router = Router(config(), SECRET, None)
        port = router.start()
        for said in ({"type": "over"}, {"type": "exit", "step": 0}, {"type": "?"}, {"no": "type"}):
            guest = await Guest.come(port)
            await asyncio.wait_for(guest.opened.wait(), SECONDS)
            guest.say(**said)
            await asyncio.wait_for(guest.over.wait(), SECONDS)
        router.close()

    asyncio.run(go())


def test_a_step_from_its_begin_to_its_end() -> None:
    async def go() -> None:
        router = Router(config(), SECRET, None)
        port = router.start()
        client = await srun(port)
        placed = await client.hear()
        assert (placed["type"], placed["nodes"], placed["counts"]) == ("placed", [0, 1], [2, 2])
        # Places that come later than the step are told all the same.
        workers = [await worker(port, node, local) for node in range(2) for local in range(2)]
        told = [await each.hear() for each in workers]
        assert [(each["type"], each["mine"]) for each in told] == [("start", [n]) for n in range(4)]
        client.say(type="input", task=2)
        assert (await workers[2].hear())["type"] == "input"
        for number, each in enumerate(workers):
            each.say(type="exit", step=0, task=number, code=0)
        assert {(await client.hear())["task"] for _ in workers} == {0, 1, 2, 3}
        workers[0].say(type="over")
        assert [(await each.hear())["type"] for each in workers] == ["over"] * 4
        router.close()
        await asyncio.wait_for(client.over.wait(), SECONDS)

    asyncio.run(go())


def test_small_steps_spread_and_idle_places_come_first() -> None:
    async def go() -> None:
        router = Router(config(), SECRET, None)
        port = router.start()
        workers = {(n, i): await worker(port, n, i) for n in range(2) for i in range(2)}
        clients = [await srun(port, tasks=1) for _ in range(4)]
        chosen = [(await each.hear())["nodes"] for each in clients]
        assert sorted(chosen) == [[0], [0], [1], [1]]
        assert [(await each.hear())["mine"] for each in workers.values()] == [[0]] * 4
        router.close()

    asyncio.run(go())


def test_a_place_that_is_lost_ends_its_tasks_and_an_srun_that_is_lost_its_step() -> None:
    async def go() -> None:
        router = Router(config(nodes=2, per_node=1), SECRET, None)
        port = router.start()
        first, second = await worker(port, 0, 0), await worker(port, 1, 0)
        client = await srun(port)
        assert (await client.hear())["type"] == "placed"
        assert [(await each.hear())["type"] for each in (first, second)] == ["start", "start"]
        second.abort()
        ended = await client.hear()
        assert (ended["type"], ended["task"], ended["signal"]) == ("exit", 1, 9)
        client.abort()
        told = await first.hear()
        assert (told["type"], told["number"]) == ("signal", 9)
        router.close()

    asyncio.run(go())


def test_what_does_not_fit_is_refused() -> None:
    async def go() -> None:
        router = Router(config(), SECRET, None)
        client = await srun(router.start(), nodes=5)
        told = await client.hear()
        assert told["type"] == "refused"
        assert "5 nodes are asked for, and there are 2" in told["text"]
        router.close()

    asyncio.run(go())
