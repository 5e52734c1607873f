"""A world in which gangs live through bad days: virtual time, one seed, the real machines.

Everything random comes from the seed, so a failing seed is a reproduction. Nodes have clocks that are off and run at
slightly different rates; messages are late and sometimes doubled; connections break, also on one side only, and lose
what was under way; agents are killed, paused, cut off, and claimed twice; agents of an older attempt turn up at the new
leader's door. The supervisor here is a model: it probes suspects, and retries in a new attempt once it has made sure of
the old one.

What must hold is checked where it would break: `World.worker_starts` and `World.check_end`.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from flowlite.node.config.ranks import assign_ranks, succeed
from flowlite.node.protocol import messages as m
from flowlite.node.protocol.messages import GangSettings, Message, MessageError
from flowlite.node.rendezvous import member as node_side
from flowlite.node.rendezvous.actions import (
    Action,
    Close,
    CloseMaster,
    Finish,
    LeaderTime,
    OthersEnded,
    Peer,
    ProveMaster,
    Send,
    WorkerEnded,
)
from flowlite.node.rendezvous.leader import Rendezvous
from flowlite.node.rendezvous.member import Member, MemberAction

TIMES: dict[str, Any] = {
    "beat": 0.5,
    "lost_after": 4.0,
    "fence_after": 10.0,
    "join_timeout": 30.0,
    "prepare_timeout": 40.0,
    "linger": 30.0,
    "grace": 2.0,
}
HORIZON = 3000.0
SLOWEST_CLOCK = 0.98


class World:
    """Virtual time, the network, and what must never happen.

    Args:
        outage: All that befalls this world are outages of so many seconds, one at a time, of one node or of several.
    """

    def __init__(self, seed: int, outage: float | None = None) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.trouble = 0.0 if outage else self.random.choice([0.0, 0.05, 0.2, 0.5])
        self._outage = outage
        self.agents: list[Agent] = []
        self.cut: set[str] = set()
        self.starts: dict[int, dict[int, Agent]] = {}
        self.rosters: dict[int, tuple[str, ...]] = {}
        self.times = TIMES
        self.longest_run = 30.0
        self.copies_for_all = seed % 3 == 0
        self.supervisor = self._make_supervisor()

    def _make_supervisor(self) -> Supervisor:
        return Supervisor(self)

    def apart(self, one: str, other: str) -> bool:
        """Whether nothing gets from one place to another just now."""
        return one in self.cut or other in self.cut

    def at(self, delay: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def some(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def run(self) -> None:
        self.supervisor.begin()
        for _ in range(self.random.randrange(12) if self.trouble else 0):
            self.at(self.some(0.0, 60.0), self._misfortune)
        if self._outage is not None:
            self.at(self.some(0.0, 30.0), partial(self._fail_network, self._outage))
        while self._queue and self.now < HORIZON and not self._quiet():
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.check_end()

    def _quiet(self) -> bool:
        return self.supervisor.outcome is not None and all(agent.over for agent in self.agents)

    # Misfortunes.

    def _misfortune(self) -> None:
        alive = [agent for agent in self.agents if agent.alive]
        if not alive:
            return
        agent = self.random.choice(alive)
        misfortunes: list[Callable[[], None]] = [
            agent.kill,
            agent.break_connections,
            agent.pause,
            partial(self._cut, agent),
            partial(self._claim, agent),
        ]
        what = self.random.choice(misfortunes)
        what()

    def _cut(self, agent: Agent) -> None:
        """A partition: nothing reaches the node, nothing leaves it, nobody is told."""
        self.cut.add(agent.instance)
        self.at(self.some(0.5, 40.0), lambda: self.cut.discard(agent.instance))

    def _fail_network(self, seconds: float) -> None:
        """Some nodes, or all, cannot be reached for a while; then all is well for a while."""
        places = [agent.instance for agent in self.agents if agent.alive]
        hit = (
            set(self.random.sample(places, self.random.randint(1, len(places))))
            if places
            else set()
        )
        self.cut.update(hit)
        self.at(seconds, lambda: self.cut.difference_update(hit))
        self.at(seconds + self.some(5.0, 30.0), partial(self._fail_network, seconds))

    def _claim(self, agent: Agent) -> None:
        """A second agent with the id of the first, of this attempt or of an earlier one."""
        attempt = max(1, agent.settings.attempt - self.random.randrange(2))
        roster = self.rosters.get(attempt, ())
        if agent.instance in roster:
            settings = GangSettings(
                "t", attempt, roster, agent.settings.processes_per_node, **self.times
            )
            Agent(self, settings, agent.instance, stray=True)

    # What must never happen.

    def worker_starts(self, agent: Agent, go: dict[str, Any]) -> None:
        attempt, roster = agent.settings.attempt, self.rosters[agent.settings.attempt]
        for other in self.agents:
            if other.working and other.settings.attempt != attempt:
                raise AssertionError(
                    f"at {self.now:.2f}: attempt {attempt} starts on {agent.instance} while attempt "
                    f"{other.settings.attempt} lives on {other.instance}"
                )
        rank = go["rank"]
        assert roster[rank] == agent.instance, "a node starts at another's rank"
        assert len(m.unpack_addresses(go)) == len(roster), "a start with a wrong roster"
        started = self.starts.setdefault(attempt, {})
        assert rank not in started, f"rank {rank} starts twice in attempt {attempt}"
        started[rank] = agent

    def check_end(self) -> None:
        assert self.supervisor.outcome is not None, (
            f"no end at {self.now:.0f}: {self.supervisor.story[-10:]}"
        )
        left = [f"{a.instance}/{a.settings.attempt}" for a in self.agents if not a.over]
        assert not left, f"agents that never end: {left}"
        assert not [agent for agent in self.agents if agent.working], "workers that never end"


class Wire:
    """A connection between somebody and a leader. In order per direction, unless the world is in trouble."""

    def __init__(self, world: World, client: Agent | Supervisor, leader: Agent, peer: Peer) -> None:
        self._world = world
        self._client = client
        self._leader = leader
        self._peer = peer
        self._last = {True: 0.0, False: 0.0}
        self._open = {True: True, False: True}
        self.number = leader.accept(self)

    def send(self, message: Message, *, up: bool) -> None:
        """`up`: towards the leader."""
        world = self._world
        if not self._open[up]:
            return
        if world.chance(world.trouble / 10):
            self.cut()  # and this message is lost with it
            return
        text = json.dumps(message)
        delay = world.some(0.0005, 0.01) if world.chance(0.9) else world.some(0.01, 1.0)
        arrival = max(self._last[up], world.now + delay)
        self._last[up] = arrival
        world.at(arrival - world.now, lambda: self._arrive(text, up))
        if world.chance(world.trouble / 4):
            world.at(arrival - world.now + world.some(0.0, 3.0), lambda: self._arrive(text, up))

    def _arrive(self, text: str, up: bool) -> None:
        if not self._open[not up]:
            return
        end = self._leader if up else self._client
        if self._world.apart(self._client.place, self._leader.place):
            self._world.at(0.7, lambda: self._arrive(text, up))
        elif (wait := end.paused_for()) > 0:
            self._world.at(wait, lambda: self._arrive(text, up))
        elif up:
            self._leader.leader_receives(self, self._peer, json.loads(text))
        else:
            self._client.receives(self, json.loads(text))

    def cut(self) -> None:
        """Break; each side notices in its own time, and sometimes one side does not at all."""
        for up in (True, False):
            if self._world.chance(0.9):
                self._world.at(self._world.some(0.0, 1.0), partial(self.close, up=up))

    def close(self, *, up: bool) -> None:
        """One end is closed: `up` is the client's. The other end notices a little later."""
        if self._open[up]:
            self._open[up] = False
            if up:
                self._client.wire_closed(self)
            else:
                self._leader.leader_wire_closed(self)
            self._world.at(self._world.some(0.0, 0.2), lambda: self.close(up=not up))


class Agent:
    """One agent process: the member's machine, on rank 0 the leader's too, and workers."""

    def __init__(
        self, world: World, settings: GangSettings, instance: str, *, stray: bool = False
    ) -> None:
        self.world = world
        self.settings = settings
        self.instance = self.place = instance
        self._rate = world.some(SLOWEST_CLOCK, 1.02)
        self._offset = world.some(-1e5, 1e5)
        self._unix = world.some(-300.0, 300.0)
        self._pause_until = 0.0
        self.alive = True
        self.over = False
        self.working = False
        self._left = False
        self._stopping = False
        self._exits: list[dict[str, Any]] = []
        self._wire: Wire | None = None
        self._dialed_wrong = world.chance(world.trouble / 4)
        incarnation = f"{instance}.{len(world.agents)}"
        self.member = Member(settings, instance, incarnation, self.clock())
        self.rendezvous: Rendezvous | None = None
        self._wires: dict[int, Wire] = {}
        self._numbers = 0
        if settings.rank_of(instance) == 0 and not stray:
            self.rendezvous = Rendezvous(
                settings, self.moment(), copies_for_all=world.copies_for_all
            )
        world.agents.append(self)
        self._dial()
        self._tick()

    def clock(self) -> float:
        return self._offset + self._rate * self.world.now

    def moment(self) -> LeaderTime:
        return LeaderTime(self.clock(), self.world.now + self._unix)

    def paused_for(self) -> float:
        return self._pause_until - self.world.now

    # Misfortunes.

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.break_connections()
            self.world.at(self.world.some(0.0, 0.5), self._gone)

    def _gone(self) -> None:
        self.working = False
        self.over = True

    def break_connections(self) -> None:
        for wire in [self._wire, *self._wires.values()]:
            if wire is not None:
                wire.cut()

    def pause(self) -> None:
        self._pause_until = self.world.now + self.world.some(0.5, 25.0)

    # The member's side.

    def _dial(self) -> None:
        if not self.alive or self._left:
            return
        if self._wire is None:
            leader = self.world.supervisor.leader(self.settings.attempt, wrong=self._dialed_wrong)
            if (
                leader is not None
                and not self.world.apart(self.place, leader.place)
                and self.paused_for() <= 0
                and leader.paused_for() <= 0
            ):
                peer = Peer("member", self.instance, f"10.0.0.{len(self.instance)}")
                self._wire = Wire(self.world, self, leader, peer)
                self._act(self.member.connected({"clock": self.world.now + self._unix}))
        self.world.at(self.world.some(0.02, 1.0), self._dial)

    def receives(self, wire: Wire, message: Message) -> None:
        if not self.alive or wire is not self._wire:
            return
        try:
            self._act(self.member.receive(message, self.clock()))
        except MessageError:
            wire.close(up=True)

    def wire_closed(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None
            if self.alive:
                self._act(self.member.disconnected())

    def _tick(self) -> None:
        if not self.alive or self.over:
            return
        if self.paused_for() <= 0:
            if not self._left:
                self._act(self.member.tick(self.clock()))
            if self.rendezvous is not None:
                self._lead(self.rendezvous.tick(self.moment()))
        self.world.at(self.world.some(0.2, 0.3), self._tick)

    def _soon(self, least: float, most: float, what: Callable[[], list[MemberAction]]) -> None:
        """Some work of the node, which takes its time, and longer while the agent is paused."""

        def work() -> None:
            if self.paused_for() > 0:
                self.world.at(self.paused_for() + 0.01, work)
            elif self.alive and not self._left:
                self._act(what())

        self.world.at(self.world.some(least, most), work)

    def _act(self, actions: list[MemberAction]) -> None:
        for action in actions:
            match action:
                case node_side.SendToLeader(message):
                    if self._wire is not None:
                        self._wire.send(message, up=True)
                case node_side.HangUp():
                    if self._wire is not None:
                        self._wire.close(up=True)
                case node_side.Prepare():
                    if self.world.chance(self.world.trouble / 20):
                        self._soon(
                            0.1, 3.0, lambda: self.member.unprepared("a volume is not there")
                        )
                    else:
                        self._soon(0.1, 5.0, lambda: self.member.prepared({}))
                case node_side.Start(go):
                    self._start(go)
                case node_side.Stop():
                    self._stop()
                case node_side.Leave():
                    self._leave()

    def _start(self, go: dict[str, Any]) -> None:
        self.world.worker_starts(self, go)
        self.working = True
        self._soon(0.01, 0.5, self.member.started)
        count = self.settings.processes_per_node
        for rank in range(go["rank"] * count, (go["rank"] + 1) * count):
            fails = self.world.chance(self.world.trouble / 5)
            body = {
                "rank": rank,
                "node": go["rank"],
                "sizes": {},
                "code": 1 if fails else 0,
                "failure": None,
            }
            self._soon(0.5, self.world.longest_run, partial(self._exit, body))

    def _exit(self, body: dict[str, Any]) -> list[MemberAction]:
        if self._stopping:
            return []
        self._exits.append(body)
        if len(self._exits) == self.settings.processes_per_node:
            self.working = False
        return self.member.worker_ended(body)

    def _stop(self) -> None:
        self._stopping = True

        def stopped() -> list[MemberAction]:
            self.working = False
            return self.member.stopped()

        self._soon(0.01, self.settings.grace, stopped)

    def _leave(self) -> None:
        assert not self.working, f"{self.instance} leaves with workers running"
        self._left = True
        if self.rendezvous is None:
            self.alive = False
            self.over = True
        elif self.world.copies_for_all:
            # As an agent that leaves does, also one whose place another has taken.
            self._lead(self.rendezvous.copied(self.moment()))
        if self._wire is not None:
            self._wire.close(up=True)

    # The leader's side.

    def accept(self, wire: Wire) -> int:
        self._numbers += 1
        self._wires[self._numbers] = wire
        return self._numbers

    def leader_receives(self, wire: Wire, peer: Peer, message: Message) -> None:
        if not self.alive or self.rendezvous is None or wire.number not in self._wires:
            return
        try:
            self._lead(self.rendezvous.receive(wire.number, peer, message, self.moment()))
        except MessageError:
            wire.close(up=False)

    def leader_wire_closed(self, wire: Wire) -> None:
        if (
            self._wires.pop(wire.number, None) is not None
            and self.alive
            and self.rendezvous is not None
        ):
            self._lead(self.rendezvous.disconnected(wire.number, self.moment()))

    def _lead(self, actions: list[Action]) -> None:
        assert self.rendezvous is not None
        for action in actions:
            match action:
                case Send(connections, message):
                    for number in connections:
                        if number in self._wires:
                            self._wires[number].send(message, up=False)
                case Close(number):
                    if number in self._wires:
                        self._wires[number].close(up=False)
                case ProveMaster():
                    if self.world.chance(self.world.trouble / 20):
                        self._lead(self.rendezvous.master_failed("no port is free", self.moment()))
                    else:
                        self._lead(self.rendezvous.master_proved(29500, self.moment()))
                case OthersEnded():
                    self._check_others()
                    self._soon(0.1, 5.0, self._copy)
                case CloseMaster() | WorkerEnded():
                    pass
                case Finish():
                    self._finish()

    def _check_others(self) -> None:
        """While a gang runs, its leader waits for the workers of all other nodes."""
        assert self.rendezvous is not None
        if self.rendezvous.phase == m.RUNNING:
            others = [each for each in self.world.agents if each.settings is self.settings]
            wrong = [each.instance for each in others if each is not self and each.working]
            assert not wrong, f"the last copy is made while workers run on {wrong}"

    def _copy(self) -> list[MemberAction]:
        """The last copy of files that all nodes write, after the workers of this node."""
        if self.working:
            self._soon(0.1, 1.0, self._copy)
        elif self.rendezvous is not None:
            self._lead(self.rendezvous.copied(self.moment()))
        return []

    def _finish(self) -> None:
        """The leader's agent ends when both its halves have."""
        if self._left and self.alive:
            self.alive = False
            self.over = True
            for wire in list(self._wires.values()):
                wire.close(up=False)


class Supervisor:
    """A model of the supervisor: attaches, probes, retries, makes sure of the old gang before it starts a new one."""

    place = "the laptop"

    def __init__(self, world: World) -> None:
        self._world = world
        nodes = world.random.choice([1, 2, 2, 3, 4, 6])
        self._roster = assign_ranks(
            f"i-{world.random.randrange(10**6):06}-{n}" for n in range(nodes)
        )
        self._processes = world.random.choice([1, 2])
        self._attempt = 0
        self._retries = world.random.randrange(3)
        self._agents: dict[str, Agent] = {}
        self._wire: Wire | None = None
        self._heard = 0.0
        self._after = 0
        self._ended: dict[str, Any] | None = None
        self._moving_on = False
        self.story: list[str] = []
        self.outcome: str | None = None

    def paused_for(self) -> float:
        return 0.0

    def leader(self, attempt: int, *, wrong: bool = False) -> Agent | None:
        """The living leader that an agent of this attempt would dial."""
        for agent in reversed(self._world.agents):
            if (
                agent.alive
                and agent.rendezvous is not None
                and (wrong or agent.settings.attempt == attempt)
            ):
                return agent
        return None

    def begin(self) -> None:
        self._next_epoch()
        self._dial()
        self._watch()

    def _next_epoch(self) -> None:
        self._attempt += 1
        self._after = 0
        self._ended = None
        self._moving_on = False
        self._heard = self._world.now
        self._agents = {}
        self._world.rosters[self._attempt] = tuple(self._roster)
        settings = GangSettings(
            "t", self._attempt, tuple(self._roster), self._processes, **self._world.times
        )
        for instance in self._roster:
            if not self._world.chance(self._world.trouble / 10):
                self._world.at(self._world.some(0.0, 5.0), partial(self._boot, instance, settings))

    def _boot(self, instance: str, settings: GangSettings) -> None:
        if settings.attempt == self._attempt and not self._moving_on and self.outcome is None:
            self._agents[instance] = Agent(self._world, settings, instance)

    def _dial(self) -> None:
        if self.outcome is not None:
            return
        leader = self._agents.get(self._roster[0])
        if (
            self._wire is None
            and leader is not None
            and leader.alive
            and not self._world.apart(self.place, leader.place)
        ):
            self._wire = Wire(self._world, self, leader, Peer("supervisor", "s", "10.0.1.1"))
            self._send({"type": "attach", "after": self._after})
        self._world.at(self._world.some(0.1, 1.0), self._dial)

    def _send(self, message: Message) -> None:
        if self._wire is not None:
            self._wire.send({**message, "task": "t", "attempt": self._attempt}, up=True)

    def wire_closed(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None

    def receives(self, wire: Wire, message: Message) -> None:
        if wire is not self._wire:
            return
        self._heard = self._world.now
        if message["type"] != "event":
            return
        event = message["event"]
        if event["seq"] > self._after + 1:
            wire.close(up=True)
            return
        if event["seq"] <= self._after:
            return
        assert self._ended is None, f"an event after the end: {event}"
        self._after = event["seq"]
        self.story.append(f"{self._world.now:.2f} {event['kind']} {event.get('instance', '')}")
        if event["kind"] == "suspect":
            self._world.at(self._world.some(0.2, 2.0), lambda: self._probe(event["instance"]))
        elif event["kind"] == "ended":
            assert event["outcome"] in m.OUTCOMES
            self._ended = event
            self._decide(event["outcome"], event["unstopped"])

    def _probe(self, instance: str) -> None:
        """Look at a suspect through another way than the leader's; where that is shut, say nothing."""
        agent = self._agents.get(instance)
        if not self._world.apart(self.place, instance) and (agent is None or agent.over):
            self._send({"type": "lost", "instance": instance, "why": "its agent is not running"})

    def _watch(self) -> None:
        """The leader is silent: look at its node, and give the attempt up if it is dead or cannot be looked at."""
        if self.outcome is not None:
            return
        self._send({"type": "beat"})
        silence = self._world.now - self._heard
        leader = self._agents.get(self._roster[0])
        dead = leader is not None and leader.over
        if (
            self._ended is None
            and not self._moving_on
            and ((silence > 5.0 and dead) or silence > 60.0)
        ):
            self._decide(m.LOST, list(self._roster))
        if self._world.chance(self._world.trouble / 400):
            self._send({"type": "stop", "kind": "cancel", "reason": "the user said so"})
        self._world.at(1.0, self._watch)

    def _decide(self, outcome: str, unstopped: list[str]) -> None:
        self.story.append(f"{self._world.now:.2f} attempt {self._attempt}: {outcome}")
        self._moving_on = True
        self._send({"type": "release"})
        if outcome in (m.DONE, m.STOPPED) or self._retries == 0:
            self.outcome = outcome
            self._world.at(60.0, self._tear_down)
            return
        self._retries -= 1
        if self._world.chance(0.3):
            # The leader first: once it is gone, no beat keeps a cut-off member alive, and the fence will do it.
            self._end_all([self._roster[0]], self._wait_for_fences)
        else:
            self._end_all(unstopped, self._renew)

    def _end_all(self, instances: list[str], then: Callable[[], None]) -> None:
        """End whatever runs on these nodes, through connection or provider; go on once that is confirmed."""
        left = [a for a in self._world.agents if a.instance in instances and not a.over]
        for agent in left:
            agent.kill()
        if left:
            self._world.at(0.5, lambda: self._end_all(instances, then))
        else:
            then()

    def _wait_for_fences(self) -> None:
        wait = (
            self._world.times["fence_after"] + self._world.times["grace"] + 2.0
        ) / SLOWEST_CLOCK + 30.0
        self._world.at(wait, self._renew)

    def _renew(self) -> None:
        """The next attempt; one node may have been replaced, and its successor has its rank."""
        if self._world.chance(0.3):
            old = self._world.random.choice(self._roster)
            self._roster = succeed(self._roster, [old], [f"{old}r"])
            assert self._roster.index(f"{old}r") == self._world.rosters[self._attempt].index(old)
        self._next_epoch()

    def _tear_down(self) -> None:
        """The provider terminates the nodes; whatever still runs there ends."""
        if self._world.chance(0.5):
            for agent in self._world.agents:
                agent.kill()
