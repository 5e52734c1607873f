"""Who may start now, and when the others are expected to: first come, first served, with conservative backfill.

A later task may start before an earlier one only if, by the limits on run time, it is over before the earlier one can
start. A task without a limit may end at any time or never, so nobody is let past a task that waits for slots of which
one is held without a limit.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flowlite.node.quick_dataclass import dataclass

MARGIN_SECONDS = 120.0
"""What a task may take besides its limit: to start its agents, to stop its workers, and to bring its files home."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A number of slots out of a set of equal ones.

    Attributes:
        count: Without so many, the task cannot start.
        most: It takes up to so many of those that are free when it starts; 0 for no more than `count`.
        each: How many of them a node takes.
    """

    slots: tuple[str, ...]
    count: int
    most: int = 0
    each: int = 1


@dataclass(frozen=True, slots=True)
class Holding:
    """What a task holds that has launched.

    Attributes:
        named: Slots that are known to be its own. The rest of what it demanded is any of the others.
        until: Unix time at which its limit ends it; None without a limit.
    """

    demands: tuple[Demand, ...]
    named: frozenset[str]
    until: float | None


@dataclass(frozen=True, slots=True)
class Request:
    """What a task waits for.

    Attributes:
        seconds: Its longest run; None without a limit.
        refused: Whether it had its turn and the provider had no room, so that others hold slots unknown to the store.
    """

    task_id: str
    demands: tuple[Demand, ...]
    seconds: float | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a task in its queue.

    Attributes:
        may_start: Whether it may launch now.
        starts_at: Unix time at which it starts by the limits of the tasks before it; None if that is not known.
        nodes: How many nodes it may take now, if that is not fixed; else None.
    """

    task_id: str
    may_start: bool
    starts_at: float | None
    nodes: int | None = None


_UNUSED: tuple[Sequence[float], Sequence[float]] = ((), ())


class _Slots:
    """When each slot is in use: for each, the sorted beginnings and ends of intervals that do not touch."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[list[float], list[float]]] = {}

    def use(self, slots: Iterable[str], begin: float, end: float) -> None:
        for slot in slots:
            begins, ends = self._used.setdefault(slot, ([], []))
            touched = slice(bisect_left(ends, begin), bisect_right(begins, end))
            begins[touched] = [min([begin, *begins[touched]])]
            ends[touched] = [max([end, *ends[touched]])]

    def free(self, slots: Sequence[str], begin: float, end: float) -> list[str]:
        """The slots that are free in all that time, those with the smallest gap first."""
        found = []
        for slot in slots:
            begins, ends = self._used.get(slot, _UNUSED)
            following = bisect_right(ends, begin)
            used_from = begins[following] if following < len(begins) else math.inf
            if used_from >= end:
                found.append((used_from, slot))
        # The sort is stable, so that slots are taken in their order.
        return [slot for _, slot in sorted(found, key=lambda each: each[0])]

    def ends(self, demands: Iterable[Demand], now: float) -> list[float]:
        """The times at which one of the slots becomes free, now included."""
        ends = {
            last
            for demand in demands
            for slot in demand.slots
            for last in self._used.get(slot, _UNUSED)[1]
            if now < last < math.inf
        }
        return [now, *sorted(ends)]


def schedule(
    now: float, holdings: Iterable[Holding], requests: Iterable[Request], *, all_times: bool = True
) -> Iterator[Place]:
    """Yields the place of every request, in their order.

    Args:
        now: The Unix time.
        requests: What is waited for, in the order of the queue.
        all_times: Whether `starts_at` is needed also where no slot is free, which takes longer.
    """
    slots = _Slots()
    for held in holdings:
        until = math.inf if held.until is None else max(held.until, now + 1.0)
        slots.use(held.named, now, until)
        for demand in held.demands:
            unnamed = demand.count - len(held.named.intersection(demand.slots))
            slots.use(slots.free(demand.slots, now, now + 1.0)[: max(0, unnamed)], now, until)
    # Of requests that ask for the same, a later one cannot start earlier: slots are only ever taken. For the same
    # reason, sets of slots of which none is free now are not looked at again.
    earliest: dict[object, float] = {}
    used_up: set[tuple[str, ...]] = set()
    for request in requests:
        some_free = False
        for demand in request.demands:
            if demand.slots not in used_up:
                if slots.free(demand.slots, now, now + 1.0):
                    some_free = True
                    break
                used_up.add(demand.slots)
        if not some_free and not all_times:
            yield Place(request.task_id, may_start=False, starts_at=None)
            continue
        asked = (request.demands, request.seconds, request.refused)
        fit = _first_fit(slots, request, now, earliest.get(asked, now))
        earliest[asked] = math.inf if fit is None else fit[0]
        if fit is None:
            _keep_for(slots, request, now)
            yield Place(request.task_id, may_start=False, starts_at=None)
        else:
            begin, chosen = fit
            taken = _filled_up(slots, request, chosen, now) if begin == now else chosen
            slots.use(itertools.chain(*taken), begin, begin + _length(request))
            nodes = _nodes(request, taken) if begin == now else None
            yield Place(request.task_id, may_start=begin == now, starts_at=begin, nodes=nodes)


def _keep_for(slots: _Slots, request: Request, now: float) -> None:
    """Keeps every slot that could serve a request of which it is not known when it starts.

    Of a demand that could be met now, only that number is kept. After a refusal that is never the last demand.
    """
    for number, demand in enumerate(request.demands, start=1):
        free = slots.free(demand.slots, now, math.inf)
        met = len(free) >= demand.count and not (request.refused and number == len(request.demands))
        slots.use(free[: demand.count] if met else demand.slots, now, math.inf)


def _length(request: Request) -> float:
    return math.inf if request.seconds is None else request.seconds + MARGIN_SECONDS


def _first_fit(
    slots: _Slots, request: Request, now: float, earliest: float
) -> tuple[float, list[list[str]]] | None:
    """Returns when a request can start and which slots it takes for each demand; None if that is not known."""
    if request.refused or earliest == math.inf:
        return None
    ends = slots.ends(request.demands, now)
    for begin in ends[bisect_left(ends, earliest) :]:
        chosen: list[list[str]] = []
        for demand in request.demands:
            free = slots.free(demand.slots, begin, begin + _length(request))
            if len(free) < demand.count:
                break
            chosen.append(free[: demand.count])
        else:
            return begin, chosen
    return None


def _filled_up(
    slots: _Slots, request: Request, chosen: Sequence[Sequence[str]], now: float
) -> list[list[str]]:
    """Adds the free slots that a request takes beyond those that it needs."""
    filled = []
    for demand, taken in zip(request.demands, chosen, strict=True):
        free = slots.free(demand.slots, now, now + _length(request)) if demand.most else []
        filled.append(
            [*taken, *(slot for slot in free if slot not in taken)][: max(demand.most, len(taken))]
        )
    return filled


def _nodes(request: Request, taken: Sequence[Sequence[str]]) -> int | None:
    pairs = zip(request.demands, taken, strict=True)
    return min((len(slots) // demand.each for demand, slots in pairs if demand.most), default=None)


def demand_of(kind: Mapping[str, Any]) -> Demand:
    """Reads an entry of `Plan.slots`."""
    most, each = int(kind.get("most") or 0), int(kind.get("each") or 1)
    slots = kind["slots"]
    # Those of `UnfinishedTask` are read for thousands of tasks at a time.
    named = slots if isinstance(slots, tuple) else tuple(map(str, slots))
    return Demand(named, int(kind["count"]), most, each)
