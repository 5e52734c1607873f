"""Cuts of the network on a simulated clock: the real rendezvous, and the real decision of the supervisor.

The machines of `tests/node/simulation.py` are `Rendezvous` and `Member`; here its model of the supervisor gives way
to `LivenessWatch` and `Reachability`, which decide who is lost. They run on an event loop whose time jumps to
whatever comes next. What befalls this world are the cuts of `cases.py`, in pairs and at any moment, and nothing else.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

from flowlite.node.config import fencing
from flowlite.node.config.ranks import succeed
from flowlite.node.protocol import messages as m
from flowlite.supervise.attempt import liveness, reachability
from flowlite.supervise.attempt.liveness import LivenessWatch
from flowlite.supervise.attempt.node_handle import Finding
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import Reachability
from tests.attack.cases import CUTS, LENGTHS, SURVIVED
from tests.node.simulation import HORIZON, SLOWEST_CLOCK, TIMES, Supervisor, World

CLIENT = Supervisor.place
NODES = 3
# As in `GangSettings`, but for what only makes a simulation longer.
REAL = {
    **TIMES,
    "beat": 1.0,
    "lost_after": 8.0,
    "fence_after": fencing.FENCE_AFTER,
    "join_timeout": 300.0,
}
REAL |= {"prepare_timeout": 900.0, "linger": 120.0}
# Connections that were made before a cut recover later than the network, as TCP sends again ever more rarely.
RECOVERS = 5.0
CONNECT_SECONDS = 10.0


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits: its time is that of whatever comes next."""

    def __init__(self) -> None:
        self.now = 0.0
        self.broken: BaseException | None = None
        super().__init__()
        self.set_exception_handler(self._keep)

    def _keep(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.broken = self.broken or context.get("exception") or RuntimeError(context["message"])

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        scheduled = self._scheduled  # type: ignore[attr-defined]
        # The loop would take these away itself, and then wait for the next one.
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


@dataclass
class Cut:
    """One cut: which pairs, when, for how long, and who may be given up for it."""

    kind: str
    pairs: frozenset[frozenset[int]]
    begins: float
    seconds: float
    culprits: frozenset[int]


def draw_cuts(chance: random.Random) -> list[Cut]:
    """One, or two in a row."""
    cuts, at = [], chance.uniform(0.0, 60.0)
    for _ in range(chance.choice((1, 1, 2))):
        kind = chance.choice(list(CUTS))
        node = chance.randrange(NODES) if kind == "client-node" else chance.randrange(1, NODES)
        everybody = [*range(NODES), _CLIENT]
        links, culprits = {
            "client-node": ([(_CLIENT, node)], [node]),
            "client-all": ([(_CLIENT, each) for each in range(NODES)], []),
            "leader-member": ([(0, node)], [0, node]),
            "member-all": ([(node, each) for each in everybody if each != node], [node]),
            "leader-all": ([(0, each) for each in everybody if each], [0]),
            "all-pairs": ([(a, b) for a in range(NODES) for b in range(a)], list(range(NODES))),
            "pair": ([(1, 2)], [1, 2]),
        }[kind]
        seconds = chance.choice((chance.choice(LENGTHS), chance.uniform(5.0, 120.0)))
        pairs = frozenset(frozenset(link) for link in links)
        cuts.append(Cut(kind, pairs, at, seconds, frozenset(culprits)))
        at += seconds + chance.uniform(5.0, 20.0)
    return cuts


_CLIENT = -1


class CutWorld(World):
    """A gang of three, one supervisor, and cuts."""

    def __init__(self, seed: int, loop: JumpingLoop) -> None:
        self._loop = loop
        super().__init__(seed, outage=1.0)
        self.times = REAL
        self.longest_run = 150.0
        self.cuts = draw_cuts(self.random)
        self.given_up: list[tuple[int, str]] = []
        self.healed: dict[frozenset[int], float] = {}

    def _make_supervisor(self) -> Supervisor:
        return DecidingSupervisor(self)

    @property
    def now(self) -> float:
        """Time is the loop's."""
        return self._loop.time()

    @now.setter
    def now(self, value: float) -> None:
        pass

    def at(self, delay: float, what: Callable[[], None]) -> None:
        self._loop.call_later(delay, what)

    def number(self, place: str) -> int:
        """The node rank that a place has or had; a replacement is another machine."""
        if place == CLIENT or place.endswith("r"):
            return _CLIENT if place == CLIENT else NODES
        roster = self.rosters.get(1, ())
        return roster.index(place) if place in roster else NODES

    def apart(self, one: str, other: str, made_before: bool = False) -> bool:
        pair = frozenset((self.number(one), self.number(other)))
        for cut in self.cuts:
            until = cut.begins + cut.seconds
            if pair in cut.pairs and made_before:
                until += RECOVERS
            if pair in cut.pairs and cut.begins <= self.now < until:
                return True
        return False

    def live(self) -> None:
        """To the end; raises AssertionError for what must not be."""
        try:
            self._loop.run_until_complete(self._live())
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        self.check_end()
        self._check_cuts()

    async def _live(self) -> None:
        self.supervisor.begin()
        while self.now < HORIZON and not self._quiet():
            await asyncio.sleep(0.5)
            if self._loop.broken is not None:
                raise self._loop.broken

    def _check_cuts(self) -> None:
        story = f"{self.cuts}\n" + "\n".join(self.supervisor.story)
        if all(cut.seconds <= SURVIVED for cut in self.cuts):
            assert self.supervisor.outcome == m.DONE, f"a short cut ended it\n{story}"
            assert set(self.rosters) == {1}, f"a short cut took an attempt\n{story}"
        may = frozenset().union(*(cut.culprits for cut in self.cuts))
        if any(name.endswith("r") for roster in self.rosters.values() for name in roster):
            # A cut does not reach a replacement. What is left of it may be one link, of which either end may be named.
            may |= {rank for cut in self.cuts for pair in cut.pairs for rank in pair}
        for rank, why in self.given_up:
            assert rank in may, f"node {rank} was given up ({why})\n{story}"


class DecidingSupervisor(Supervisor):
    """Decides as the real one does, with its own eyes; what it does about it stays a model."""

    _world: CutWorld

    def begin(self) -> None:
        self._roster = [f"i-{number}" for number in range(NODES)]
        super().begin()

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close(up=True)

    def _next_epoch(self) -> None:
        self._hang_up()
        super()._next_epoch()
        nodes = [SimulatedNode(self, rank, name) for rank, name in enumerate(self._roster)]
        threads: Any = SimulatedCrew()
        self._reach = Reachability(nodes, threads, self._elsewhere, lambda since: None)  # type: ignore[arg-type]
        self._watching = LivenessWatch(nodes, self._reach)  # type: ignore[arg-type]
        self.link = SimulatedLink(self)
        self._tasks: list[asyncio.Task[None]] = []

    def _boot(self, instance: str, settings: Any) -> None:
        """Whom the client does not reach it cannot start."""
        if self._world.apart(CLIENT, instance):
            self._world.at(0.5, lambda: self._boot(instance, settings))
        else:
            super()._boot(instance, settings)

    def _follow(self) -> None:
        """The leader was reached: from now on it is watched."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._watch_leader(self._attempt)),
            loop.create_task(self._watching.joining(self.link)),  # type: ignore[arg-type]
        ]

    def _elsewhere(self) -> str:
        everything = range(NODES)
        cut_off = all(self._world.apart(CLIENT, f"i-{number}") for number in everything)
        return "" if cut_off else "another host"

    async def _watch_leader(self, attempt: int) -> None:
        finding = await self._watching.leader(self.link)  # type: ignore[arg-type]
        if attempt == self._attempt and self._ended is None and not self._moving_on:
            self._world.given_up.append((0, finding.why))
            self._decide(m.LOST, list(self._roster))

    def receives(self, wire: Any, message: Any) -> None:
        if wire is self._wire and not self._tasks and not self._moving_on:
            self._follow()
        event = message.get("event", {})
        fresh = wire is self._wire and event.get("seq", 0) == self._after + 1
        super().receives(wire, message)
        if fresh and event.get("kind") == "stopping" and event.get("outcome") == m.LOST:
            named = re.search(r"node (\d+)", event["reason"])
            self._world.given_up.append((int(named[1]) if named else -2, event["reason"]))
        if fresh:
            self._watching.handle(self.link, event)  # type: ignore[arg-type]

    def _probe(self, instance: str) -> None:
        """`LivenessWatch` does it."""

    def _watch(self) -> None:
        if self.outcome is None:
            if self.heard_for() > REAL["lost_after"]:
                self._hang_up()
            self._send({"type": "beat"})
            self._world.at(1.0, self._watch)

    def _decide(self, outcome: str, unstopped: list[str]) -> None:
        for task in self._tasks:
            task.cancel()
        self._watching.close()
        self.story.append(f"{self._world.now:.2f} attempt {self._attempt}: {outcome}")
        self._moving_on = True
        self._send({"type": "release"})
        if outcome in (m.DONE, m.STOPPED) or self._retries == 0:
            self.outcome = outcome
            self._world.at(60.0, self._tear_down)
            return
        self._retries -= 1
        from_now = fencing.replaced_from(0.0, REAL["fence_after"], REAL["grace"])
        self._end(self._world.now + from_now / SLOWEST_CLOCK)

    def _end(self, certain: float) -> None:
        """Ends what can be reached; begins again when nothing can run any more."""
        left = [a for a in self._world.agents if not a.over]
        for agent in left:
            if not self._world.apart(CLIENT, agent.instance):
                agent.kill()
        unclear = [a.instance for a in left if self._world.apart(CLIENT, a.instance)]
        if any(not a.over and a.instance not in unclear for a in left) or (
            unclear and self._world.now < certain
        ):
            self._world.at(0.5, lambda: self._end(certain))
            return
        for instance in unclear:
            self._roster = succeed(self._roster, [instance], [f"{instance}r"])
        self._next_epoch()

    # What the real one does through a link

    def say_lost(self, instance: str, why: str, answers: bool) -> None:
        """The second source has spoken."""
        self._send({"type": "lost", "instance": instance, "why": why, "answers": answers})

    def heard_for(self) -> float:
        """Seconds since the leader was heard."""
        return self._world.now - self._heard

    def look(self, instance: str) -> Finding:
        """What a node answers that can be reached."""
        agent = self._agents.get(instance)
        if agent is None:
            return Finding(ProbeAnswer.ABSENT, "its agent was not started")
        leader = self.leader(agent.settings.attempt)
        hears = leader is not None and not self._world.apart(instance, leader.place)
        life = ProbeAnswer.DEAD if agent.over else ProbeAnswer.ALIVE
        return Finding(life, "its agent has left" if agent.over else "", hears_leader=hears)


class SimulatedLink:
    """What `LivenessWatch` wants to know of the line to the leader, and says through it."""

    def __init__(self, supervisor: DecidingSupervisor) -> None:
        self._supervisor = supervisor

    @property
    def attached(self) -> bool:
        return self._supervisor._wire is not None

    @property
    def silence(self) -> float:
        return self._supervisor.heard_for()

    @property
    def phase(self) -> str:
        return m.ENDED if self._supervisor._ended is not None else ""

    async def lost(self, instance: str, why: str, *, answers: bool) -> None:
        self._supervisor.say_lost(instance, why, answers)

    async def stop(self, kind: str, reason: str) -> None:
        self._supervisor._send({"type": "stop", "kind": kind, "reason": reason})


class SimulatedNode:
    """A node as `Reachability` knows it."""

    def __init__(self, supervisor: DecidingSupervisor, rank: int, instance: str) -> None:
        self.supervisor = supervisor
        self.rank = rank
        self.name = f"node {rank} ({instance})"
        self.instance = SimpleNamespace(id=instance)

    async def probe(self) -> Finding:
        """Over a connection that may have been made before a cut."""
        return await self._ask(made_before=True)

    async def probe_afresh(self) -> Finding:
        """Over one that is made for it."""
        return await self._ask(made_before=False)

    def received(self) -> int:
        """Nothing that would fill the way."""
        return 0

    async def _ask(self, made_before: bool) -> Finding:
        world, name = self.supervisor._world, self.instance.id
        await asyncio.sleep(world.some(0.01, 0.3))
        for _ in range(int(CONNECT_SECONDS)):
            if not world.apart(CLIENT, name, made_before):
                return self.supervisor.look(name)
            await asyncio.sleep(1.0)
        return Finding(ProbeAnswer.UNREACHABLE, "it does not answer")


class SimulatedCrew:
    """Calls in place of threads."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `Crew.run`."""
        await asyncio.sleep(0.01)
        done = function(*arguments)
        return await done if asyncio.iscoroutine(done) else done

    look = run


def live_through(seed: int) -> None:
    """One gang. Raises AssertionError for what must not be."""
    loop = JumpingLoop()
    clock = SimpleNamespace(monotonic=loop.time, time=loop.time)
    try:
        with (
            mock.patch.object(reachability, "time", clock),
            mock.patch.object(liveness, "time", clock),
        ):
            CutWorld(seed, loop).live()
    finally:
        loop.close()
