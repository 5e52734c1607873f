"""One case: which faults come in which phase of a task, for how long. Everything is drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.security.hostile_hosts import HOSTS

NODES = 3
"""Nodes of the gang; the pool has one host more."""
PHASES = (
    "bring-up",
    "join",
    "prepare",
    "before GO",
    "running",
    "last seconds",
    "collecting",
    "teardown",
)
CUTS = {
    "client-node": "client and one node",
    "client-all": "client and all nodes",
    "leader-member": "leader and one member",
    "member-all": "one member and everybody",
    "leader-all": "leader and everybody",
    "all-pairs": "all nodes among themselves",
    "pair": "two members",
}
LENGTHS = (10.0, 15.0, 20.0, 30.0, 90.0)
SURVIVED = 20.0
"""A cut that is no longer ends nothing, in any phase."""
KINDS = ("partition", "disk", "clock", "sshd", "squatter", "hostile", "kept")
_SHARES = {
    "partition": 10,
    "disk": 2,
    "clock": 2,
    "sshd": 2,
    "squatter": 1,
    "hostile": 2,
    "kept": 1,
}
BEFORE = ("squatter", "hostile")
"""Kinds of faults that are there before the task comes."""
_TABLE = {script: name for name, (_, script, _) in reversed(HOSTS.items())}
SSHD_ANSWERS = {
    "control": r"printf '\033]0;TITLE\007\033[2J'; exec sleep 1000000",
    "silence": "exec sleep 1000000",
    "nothing": "true",
    **{name: script for script, name in reversed(_TABLE.items())},
}
"""What a host says in place of what is asked, each once: shell scripts."""
MISDEEDS = (
    "control",
    "killed",
    "pickle",
    "line",
    "agent.log",
    "agent.log of control sequences",
    "progress bar",
    "line of control sequences",
    "line that is no text",
    "empty lines",
    "exception of 30 MB",
    "chain of exceptions",
    "result of nonsense",
    "report that is a bomb",
    "process file without end",
    "files of other kinds",
)
"""What a worker does to its node and to all that the node sends (`program/attacked.py`)."""
LIES = ("without end", "too long", "too short", "a device", "a pipe", "another user's")
"""What a host makes of a result that it keeps (`kept.py`)."""
SQUATS = ("yes", "silence", "zeros", "garbage", "directory")


@dataclass(frozen=True)
class Fault:
    """Something that is wrong for a while.

    Attributes:
        kind: One of `CUTS`; "disk", "sshd", "squatter" or "hostile" of a host; "client-disk"; "clock" of a host or
            of the client.
        nodes: Whom it befalls, by node rank; empty for the client or for all.
        after: Seconds between the end of the one before, or the beginning of the phase, and its own beginning.
        seconds: How long it lasts.
        way: More of it: what sshd answers, what the squatter or the hostile node does, by how much the clock is moved.
    """

    kind: str
    nodes: tuple[int, ...]
    after: float
    seconds: float
    way: str = ""

    def __str__(self) -> str:
        who = "+".join(str(node) for node in self.nodes)
        words = [self.kind, f"node {who}" if who else "", self.way, f"{self.seconds:.0f} s"]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Case:
    """One task and what befalls it.

    Attributes:
        seed: Everything else was drawn from it, and from the kind.
        kind: One of `KINDS`.
        phase: When the first fault begins.
        jitter: Seconds into the phase.
        finish_after: In the last seconds of the run, when the workers return, from the beginning of the fault on.
        open_after: While nodes prepare, when the last one is done, likewise.
        cancel_after: When the user cancels, likewise; None for never.
    """

    seed: int
    kind: str
    phase: str
    faults: tuple[Fault, ...]
    retries: int = 0
    jitter: float = 0.0
    finish_after: float = 0.0
    open_after: float = 0.0
    cancel_after: float | None = None

    def __str__(self) -> str:
        more = f", cancelled after {self.cancel_after:.1f} s" if self.cancel_after else ""
        retries = ", retries=1" if self.retries else ""
        return f"{self.phase}: {', then '.join(map(str, self.faults))}{retries}{more}"

    @property
    def longest(self) -> float:
        """Seconds of its longest fault."""
        return max(fault.seconds for fault in self.faults)

    @property
    def leader_is_out_of_reach(self) -> bool:
        """Whether the client cannot tell the leader anything for a while."""
        return any(
            fault.kind in ("client-all", "leader-all")
            or (fault.kind in ("client-node", "sshd") and 0 in fault.nodes)
            for fault in self.faults
        )

    @property
    def must_survive(self) -> bool:
        """Whether nothing may end the first attempt."""
        return self.kind == "partition" and self.longest <= SURVIVED


def draw(seed: int, kind: str = "all") -> Case:
    """The case of a seed. `kind` is one of `KINDS`, or "all"."""
    chance = random.Random(f"{kind} {seed}")
    if kind == "all":
        (kind,) = chance.choices(list(_SHARES), list(_SHARES.values()))
    phase = chance.choice(PHASES)
    count = 2 if kind == "partition" and chance.random() < 0.3 else 1
    faults = tuple(_DRAWN[kind](chance, chance.uniform(2.0, 20.0) * n, seed) for n in range(count))
    if kind in BEFORE:
        phase = "bring-up"
    elif kind == "kept":
        phase = "collecting"
    return Case(
        seed,
        kind,
        phase,
        faults,
        retries=int(chance.random() < 0.3 and kind != "kept"),
        jitter=chance.choice((0.0, chance.uniform(0.0, 1.0))),
        finish_after=chance.uniform(0.0, 6.0),
        open_after=chance.uniform(0.0, faults[0].seconds + 5.0),
        cancel_after=_cancel(chance, kind, faults[0]),
    )


def _cancel(chance: random.Random, kind: str, first: Fault) -> float | None:
    wanted = chance.random() < 0.1 and kind not in ("hostile", "kept")
    return chance.uniform(0.0, first.seconds) if wanted else None


def _length(chance: random.Random) -> float:
    return chance.choice(
        (chance.choice(LENGTHS), chance.uniform(5.0, 20.0), chance.uniform(5, 120))
    )


def cut(kind: str, node: int = 1, seconds: float = 10.0, after: float = 0.0) -> Fault:
    """A cut of the network. `node` is the one it is about, where there is a choice."""
    nodes = {"client-all": (), "all-pairs": (), "leader-all": (0,), "pair": (1, 2)}
    return Fault(kind, nodes.get(kind, (node,)), after, seconds)


def _draw_cut(chance: random.Random, after: float, seed: int) -> Fault:
    kind = chance.choice(list(CUTS))
    node = chance.randrange(NODES) if kind == "client-node" else chance.randrange(1, NODES)
    return cut(kind, node, _length(chance), after)


def _draw_disk(chance: random.Random, after: float, seed: int) -> Fault:
    kind, nodes = chance.choice((("client-disk", ()), ("disk", (chance.randrange(NODES),))))
    return Fault(kind, nodes, after, chance.uniform(5.0, 40.0))


def _draw_clock(chance: random.Random, after: float, seed: int) -> Fault:
    who = chance.randrange(-1, NODES)
    by = chance.choice((60, 3600, 86400 * 400)) * chance.choice((-1, 1))
    return Fault("clock", () if who < 0 else (who,), after, chance.uniform(5.0, 20.0), f"{by:+d}")


def _draw_sshd(chance: random.Random, after: float, seed: int) -> Fault:
    way = _in_turn(list(SSHD_ANSWERS), seed)
    return Fault("sshd", (chance.randrange(NODES),), after, chance.uniform(5.0, 40.0), way)


def _draw_squatter(chance: random.Random, after: float, seed: int) -> Fault:
    return Fault("squatter", (chance.randrange(NODES),), after, 60.0, _in_turn(SQUATS, seed))


def _draw_hostile(chance: random.Random, after: float, seed: int) -> Fault:
    return Fault("hostile", (chance.randrange(NODES),), after, 5.0, _in_turn(MISDEEDS, seed))


def _draw_kept(chance: random.Random, after: float, seed: int) -> Fault:
    return Fault("kept", (chance.randrange(1, NODES),), after, 5.0, _in_turn(LIES, seed))


def _in_turn(ways: Sequence[str], seed: int) -> str:
    """The way of a seed: as many seeds in a row as there are ways play each of them once."""
    return ways[seed % len(ways)]


_DRAWN = {
    "partition": _draw_cut,
    "disk": _draw_disk,
    "clock": _draw_clock,
    "sshd": _draw_sshd,
    "squatter": _draw_squatter,
    "hostile": _draw_hostile,
    "kept": _draw_kept,
}
