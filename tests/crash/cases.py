"""Crash points: every call that a task makes of a cloud, killed before it and after it, under every fault.

A case is drawn, not written: `all_cases` has them all, which `test_simulated` plays on a simulated clock. `sample`
takes some for `test_crashes`, which plays them with real processes and machines: a dozen that cover as many pairs of
attributes as a dozen can, and the others with a fresh seed, which is part of their names. `FLOW_CRASH` says how many
("all" for all of them), and `FLOW_CRASH_SEED` repeats a seed.
"""

from __future__ import annotations

import math
import os
import random
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.sweeps import A_DOZEN, pairwise

IN_CI = A_DOZEN

SUPERVISOR, MACHINE = "supervisor", "machine"
BOOT, END, RUN = "boot", "end", "run"
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the cloud does wrong while a task is killed.

    Attributes:
        orders: Arguments of `fault` of the box, with "action" among them.
        lag: Seconds by which listings lag behind.
        machines: What becomes of the machine that boots: "" for nothing bad.
        capacity: Whether there is any.
    """

    orders: tuple[dict[str, Any], ...] = ()
    lag: float = 0.0
    machines: str = ""
    capacity: bool = True


@dataclass(frozen=True, slots=True)
class Points:
    """Where one cloud can be hit, and what can go wrong with it.

    Attributes:
        boot: Calls from the intent to launch on, while machines boot and do not answer.
        end: Calls of a task that is cancelled then.
        run: Calls of a task that runs to its result and is given back.
        faults: By name.
        harmless: Calls of a task that only look, and at what no crash can change: prices, histories.
    """

    boot: tuple[str, ...]
    end: tuple[str, ...]
    run: tuple[str, ...]
    faults: dict[str, Fault] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Case:
    """One crash.

    Attributes:
        cloud: "aws" or "mithril".
        phase: "boot", "end" or "run", as `Points` has them.
        action: The call at which somebody is killed.
        nth: Which one of those calls, from 0.
        when: "before" its effect, or "after" it and before the reply.
        lost: Who is killed: the supervisor, or the client's whole machine, with FLOW_HOME.
        fault: What goes wrong besides.
    """

    cloud: str
    phase: str
    action: str
    nth: int
    when: str
    lost: str
    fault: str

    def __str__(self) -> str:
        which = f"{self.action.replace(':', '.')}{'-again' if self.nth else ''}"
        return f"{self.cloud}-{self.phase}-{self.lost}-{self.when}-{which}-{self.fault}"


@dataclass(frozen=True, slots=True)
class Market:
    """What is wrong at the first two places.

    Attributes:
        full: Whether the first place has no room at all.
        boots: How the first machines of EC2 boot, as for `AwsBox.boots`.
        lost: Actions whose first answers are lost, though they had their effect.
        filled_late: Whether the bid at the second place is filled in the moment in which it is withdrawn.
        taken: Whether the first place has room until the task runs there, and then takes its machine and has none.
        tried: The reasons for which the places are left, in order: index, kind.
    """

    tried: tuple[tuple[int, str], ...]
    full: bool = False
    boots: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    filled_late: bool = False
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Season:
    """What there is for a gang of 2 to 4 nodes.

    Attributes:
        room: How many machines there are at first.
        sizes: How many nodes its attempts have, in order.
        taken: Whether a machine is taken away when its ranks run.
        room_after: How many more there are then.
        grows: Whether there is room for one more when its ranks run, for which they are asked to stop.
        refuses: Whether the ranks go on nevertheless, so that the new nodes are given back.
        lost: Whether the answers to the first two calls that create something are lost, though they had their effect.
    """

    room: int
    sizes: tuple[int, ...]
    taken: bool = False
    room_after: int = 0
    grows: bool = False
    refuses: bool = False
    lost: bool = False


SEASONS = {
    "room for all": Season(4, (4,)),
    "room for three": Season(3, (3,)),
    "one is taken, and there is no other": Season(4, (4, 3), taken=True),
    "one is taken, and room comes back": Season(3, (3, 4), taken=True, room_after=2),
    "answers are lost after their effect": Season(3, (3,), lost=True),
    "it grows while it runs": Season(3, (3, 4), grows=True),
    "it does not stop for those that come": Season(2, (2,), grows=True, refuses=True),
}

MARKETS = {
    "no room, and a price above the cap": Market(((0, "full"), (1, "queued")), full=True),
    "answers are lost after their effect": Market(
        ((0, "full"), (1, "queued")), full=True, lost=("create_bid", "RunInstances")
    ),
    "a bid is filled late": Market(((0, "full"), (1, "queued")), full=True, filled_late=True),
    "the machine is taken, and there is no other": Market(((0, "full"), (1, "queued")), taken=True),
    "machines die twice while they boot": Market(
        ((0, "refused"), (0, "refused"), (1, "queued")), boots=("dies", "dies")
    ),
}


NOTHING, DEAD, TAKEN = "nothing happens", "a machine dies", "the bid loses its machines"
BETWEEN = {"aws": (NOTHING, DEAD), "mithril": (NOTHING, DEAD, TAKEN)}
"""What may happen to machines while they are kept for the next task, by cloud."""


def all_cases(points: dict[str, Points]) -> list[Case]:
    """Every case there is."""
    return [
        Case(cloud, phase, action, nth, when, lost, fault)
        for cloud, there in points.items()
        for phase, actions in ((BOOT, there.boot), (END, there.end), (RUN, there.run))
        for action in actions
        for nth in (0, 1)
        for when in (BEFORE, AFTER)
        for lost in (SUPERVISOR, MACHINE)
        for fault in there.faults
        if possible(there.faults[fault], phase, lost)
    ]


def possible(fault: Fault, phase: str, lost: str) -> bool:
    """Whether a case can be: without machines that work no task runs, and none of them ends itself."""
    broken = bool(fault.machines) or not fault.capacity
    return not broken or (phase != RUN and (lost == SUPERVISOR or fault.machines != "never"))


def some_of_each_point(cases: Iterable[Case], one_in: int, seed: int) -> list[Case]:
    """Every crash point, each with one in so many of the faults that it can meet, and at least one; drawn."""
    points: dict[Case, list[Case]] = {}
    for case in cases:
        points.setdefault(replace(case, fault=""), []).append(case)
    chance = random.Random(seed)
    return [
        case for met in points.values() for case in chance.sample(met, math.ceil(len(met) / one_in))
    ]


def sample(cases: Sequence[Case]) -> list[tuple[str, Case]]:
    """Those to be run now, each with its name."""
    asked = os.environ.get("FLOW_CRASH", str(IN_CI))
    if asked == "all":
        return [(str(case), case) for case in cases]
    count = int(asked)
    chosen = pairwise(cases, min(count, IN_CI), lambda case: asdict(case).items())
    named = [(str(case), case) for case in chosen]
    if count <= IN_CI:
        return named
    seed = fresh_seed()
    fresh = random.Random(seed).sample(list(cases), count - IN_CI)
    return named + [(f"seed{seed}-{case}", case) for case in fresh]


def fresh_seed() -> int:
    """Another one each time, and the same in all processes of one run of the tests."""
    if asked := os.environ.get("FLOW_CRASH_SEED"):
        return int(asked)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    seed = random.Random(run).randrange(10**6) if run else secrets.randbelow(10**6)
    # Whoever imports this again in this process gets the same.
    os.environ["FLOW_CRASH_SEED"] = str(seed)
    return seed


def first_and_last(calls: Sequence[str], beside: int = 1) -> list[int]:
    """The calls that are the first or the last with just these neighbours, so many before and after.

    A task that waits for half an hour asks the same hundreds of times.
    """
    first: dict[tuple[str, ...], int] = {}
    last: dict[tuple[str, ...], int] = {}
    for nth in range(len(calls)):
        around = tuple(calls[max(0, nth - beside) : nth + beside + 1])
        first.setdefault((*around, str(min(nth, beside))), nth)
        last[(*around, str(min(nth, beside)))] = nth
    return sorted({*first.values(), *last.values()})
