"""Who looks after the nodes that a leader misses, and by whose word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowlite.supervise.attempt import liveness as watch_module
from flowlite.supervise.attempt import node_verdict as verdict_module
from flowlite.supervise.attempt import reachability as reach_module
from flowlite.supervise.attempt.liveness import LivenessWatch
from flowlite.supervise.attempt.node_verdict import ProbeAnswer, Verdict
from flowlite.supervise.attempt.reachability import Reachability
from flowlite.supervise.threads import Threads
from tests.supervise.fake_nodes import FakeNode

SUSPECT = {"kind": "suspect", "instance": "n1", "rank": 1, "why": "no sign of life for 8 s"}
BACK = {"kind": "back", "instance": "n1", "rank": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions, without the seconds."""
    # Nodes here answer at once: only a machine that is busy would need this time.
    monkeypatch.setattr(reach_module, "PROBE_SECONDS", 10.0)
    monkeypatch.setattr(reach_module, "_AT_ONCE", 0.0)
    monkeypatch.setattr(verdict_module, "PATIENCE", 0.0)
    monkeypatch.setattr(verdict_module, "TELL_AFTER", 0.0)
    monkeypatch.setattr(watch_module, "PROBE_EVERY", 0.001)
    monkeypatch.setattr(watch_module, "LOOK_EVERY", 0.001)


class FakeLink:
    """A line to a leader that is heard, or not."""

    def __init__(self, *, attached: bool = True) -> None:
        self.attached = attached
        self.silence = 0.0
        self.told: asyncio.Queue[str] = asyncio.Queue()

    async def lost(self, instance: str, why: str, *, answers: bool = False) -> None:
        self.told.put_nowait(instance)


def play(member: FakeNode, act: Callable[[LivenessWatch, Reachability], Awaitable[None]]) -> None:
    """Lets a supervisor of two nodes act."""

    async def run() -> None:
        nodes = [FakeNode(0, ProbeAnswer.ALIVE), member]
        reach = Reachability(nodes, Threads(), str, lambda since: None)
        async with asyncio.timeout(60):
            await act(LivenessWatch(nodes, reach), reach)

    asyncio.run(run())


def test_a_node_that_the_leader_misses_is_told_on_the_line_that_is_followed() -> None:
    """The line that told of it may have ended meanwhile, as when the disk here was full."""

    async def act(watch: LivenessWatch, _: Reachability) -> None:
        broken, link = link_of(attached=False), link_of()
        watch.handle(broken, SUSPECT)
        watch.close()
        watch.follow(link)
        assert await link.told.get() == "n1"
        assert broken.told.empty()
        assert watch.replace == {"n1": "as unreachable"}
        watch.close()

    play(FakeNode(1, ProbeAnswer.UNREACHABLE), act)


def test_a_node_that_is_back_is_looked_at_no_more() -> None:
    member = FakeNode(1, ProbeAnswer.ALIVE)

    async def act(watch: LivenessWatch, _: Reachability) -> None:
        link = link_of()
        watch.handle(link, SUSPECT)
        while not member.probes:
            await asyncio.sleep(0)
        watch.handle(link, BACK)
        watch.follow(link)
        await asyncio.sleep(0.1)
        looked = member.probes
        await asyncio.sleep(0.1)
        assert member.probes == looked

    play(member, act)


def test_nobody_looks_by_the_word_of_a_leader_that_is_not_followed_any_more() -> None:
    """Else such looks would take the proof from those who look for themselves."""
    member = FakeNode(1, ProbeAnswer.UNREACHABLE)

    async def act(watch: LivenessWatch, reach: Reachability) -> None:
        link = link_of(attached=False)
        watch.handle(link, SUSPECT)
        while not member.probes:
            await asyncio.sleep(0)
        watch.close()
        for verdict in (Verdict.WAIT, Verdict.WAIT, Verdict.LOST):
            # Time enough for another look, if anybody still looked.
            await asyncio.sleep(0.05)
            assert (await reach.judge_alone(member))[0] is verdict

    play(member, act)


def link_of(*, attached: bool = True) -> Any:
    return FakeLink(attached=attached)
