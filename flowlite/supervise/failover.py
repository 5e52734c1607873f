"""Which of a task's places is asked next, and what is recorded about those that failed.

A task may have several places (`TaskRecord.candidates`), of which one at a time is asked. A place is left in steps that
are durable one by one, so that a supervisor that takes over does the same as one that was never interrupted:

1. `TaskRecord.tried` gets an entry with the reason. The intents of the launch stay open.
2. What the place has is ended, until its listing proves that nothing is left and nothing can still come.
3. One transaction closes the entry and the intents, and makes the next place the present one.

A search lasts from the first launch of an attempt until the gang has its nodes. An entry of `tried` is

    {"candidate": index, "at": Unix time, "why": words, "kind": `Kind`, "search": [attempt, retries used],
     "since": when the search began, "times": how often the place had no room in the search,
     "refusals": how often it refused, "turn": True if it was left because it was not the task's turn there,
     "left_at": Unix time of step 3}

Everything here is computed from the store, without I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Plan
from flowlite.state.store import FullPlace, TaskRecord

# Seconds for which a paid place that had no room is not asked again, by any task of this FLOW_HOME.
FULL_SECONDS = 180.0
# A launch may be queued for this many seconds before another place is asked; twice as long each time it comes round.
QUEUE_SECONDS, _LONGEST_QUEUE = 120.0, 3600.0
# Pauses before a place that had no room is asked again in the same search.
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 300.0
# A place that refused so often in one search is not asked again in it: a boot may fail by chance once.
_MOST_REFUSALS = 2
# Entries of `tried` that are kept.
_MOST_ENTRIES = 200


class Kind(StrEnum):
    """Why a place was left."""

    FULL = "full"
    QUOTA = "quota"
    QUEUED = "queued"
    REFUSED = "refused"
    BARRED = "barred"


class PlaceFailed(Exception):
    """The present place cannot have the gang now, and the task has others. The text is for people.

    Attributes:
        kind: The reason.
        nodes: How many nodes were asked for.
        since: When they were asked for first, as Unix time.
        turn: Whether nothing was asked for, because it was not the task's turn.
    """

    def __init__(
        self, text: str, kind: Kind, nodes: int = 0, since: float = 0.0, *, turn: bool = False
    ) -> None:
        super().__init__(text)
        self.turn = turn
        self.kind = kind
        self.nodes = nodes
        self.since = since


@dataclass(frozen=True, slots=True)
class NextPlace:
    """The place to ask next.

    Attributes:
        candidate: Its index.
        plan: Its plan.
        at: Unix time before which it is not asked.
    """

    candidate: int
    plan: Plan
    at: float


def has_several(record: TaskRecord) -> bool:
    """Whether the task has more than one place."""
    return len(record.candidates) > 1


def plan_of(record: TaskRecord, candidate: int) -> Plan:
    """The plan of a place."""
    return Plan.from_json(record.candidates[candidate]["plan"])


def place_of(plan: Plan) -> str:
    """The name by which all tasks of a FLOW_HOME know a place: provider, region, machine type and market."""
    return json.dumps([plan.provider, plan.region, plan.instance_type, plan.spot])


def is_leaving(record: TaskRecord) -> bool:
    """Whether the present place is being left, and nothing proves yet that nothing is left there."""
    return bool(record.tried) and "left_at" not in record.tried[-1]


def with_failure(
    record: TaskRecord, failed: PlaceFailed, why: str, now: float
) -> list[dict[str, Any]]:
    """`tried` with an entry for the failure of the present place. `why` is its text as it may be stored."""
    before = _latest(record).get(record.candidate, {})
    refused = failed.kind in (Kind.REFUSED, Kind.BARRED)
    entry = {
        "candidate": record.candidate,
        "at": now,
        "why": why,
        "kind": failed.kind.value,
        "search": _search(record),
        "since": began(record) or failed.since or now,
        "times": int(before.get("times", 0)) + (not refused),
        "refusals": int(before.get("refusals", 0)) + refused,
        **({"turn": True} if failed.turn else {}),
    }
    return [*record.tried, entry][-max(_MOST_ENTRIES, 2 * len(record.candidates)) :]


def with_place_left(record: TaskRecord, now: float) -> list[dict[str, Any]]:
    """`tried` once it is proved that nothing is left at the place."""
    if not is_leaving(record):
        return record.tried
    return [*record.tried[:-1], {**record.tried[-1], "left_at": now}]


def began(record: TaskRecord) -> float:
    """Unix time at which the present search began to wait; 0.0 if nothing has failed in it."""
    found = _entries(record)
    return float(found[0]["since"]) if found else 0.0


def came_at(record: TaskRecord, now: float) -> float:
    """Unix time since which the present place is the present one; now, if nothing has failed in this search."""
    found = _entries(record)
    return float(found[-1].get("left_at", now)) if found else now


def all_were_tried(record: TaskRecord) -> bool:
    """Whether each place has failed in the present search."""
    return len(_latest(record)) == len(record.candidates)


def queue_seconds(record: TaskRecord) -> float:
    """How long a launch at the present place may be queued before another place is asked."""
    times = int(_latest(record).get(record.candidate, {}).get("times", 0))
    return float(min(_LONGEST_QUEUE, QUEUE_SECONDS * 2.0 ** min(times, 16)))


def left_for_turn(record: TaskRecord) -> list[int]:
    """The places that were left in the present search because it was not the task's turn there."""
    return [index for index, entry in sorted(_latest(record).items()) if entry.get("turn")]


def next_place(
    record: TaskRecord,
    full: Mapping[str, FullPlace],
    now: float,
    free: Collection[int] = frozenset(),
) -> NextPlace | None:
    """The place to ask next: of those that may be asked now, the one that had no room least often, in their order.

    If none may be asked now, the one that may be asked first. None if all have refused.

    Args:
        full: Places that had no room, by name (`place_of`).
        now: The Unix time.
        free: Places at which it is the task's turn now. They are asked without a pause.
    """
    latest, found = _latest(record), []
    for index in range(len(record.candidates)):
        entry = latest.get(index, {})
        if entry.get("kind") == Kind.BARRED or entry.get("refusals", 0) >= _MOST_REFUSALS:
            continue
        plan, times = plan_of(record, index), int(entry.get("times", 0))
        at = max(_pause_ends(entry), _room_is_unlikely_until(plan, full, now))
        at = 0.0 if index in free else at
        found.append((max(at, now), times, NextPlace(index, plan, at)))
    if not found:
        return None
    return min(found, key=lambda each: (each[0], each[1], each[2].candidate))[2]


def report(record: TaskRecord) -> str:
    """Why each place that was tried in the present search has failed, in one line."""
    told = []
    for index, entry in sorted(_latest(record).items()):
        times = int(entry["times"]) + int(entry["refusals"])
        often = f" ({times} times)" if times > 1 else ""
        told.append(f"{plan_of(record, index).place}: {entry['why']}{often}")
    return "; ".join(told)


def _search(record: TaskRecord) -> Sequence[int]:
    return [record.attempt, record.retries_used]


def _latest(record: TaskRecord) -> dict[int, dict[str, Any]]:
    """The last entry of each place in the present search."""
    return {int(entry["candidate"]): entry for entry in _entries(record)}


def _entries(record: TaskRecord) -> list[dict[str, Any]]:
    """The entries of the present search."""
    search = _search(record)
    return [entry for entry in record.tried if entry.get("search") == search]


def _pause_ends(entry: Mapping[str, Any]) -> float:
    times = int(entry.get("times", 0))
    if not times or entry["kind"] == Kind.REFUSED:
        return 0.0
    return float(entry["at"]) + float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(times - 1, 16)))


def _room_is_unlikely_until(plan: Plan, full: Mapping[str, FullPlace], now: float) -> float:
    row = full.get(place_of(plan)) if plan.is_paid else None
    # A time in the future is from before this FLOW_HOME's clock was set right, and says nothing of now.
    if row is None or row.nodes > plan.machines or row.at > now:
        return 0.0
    return row.at + FULL_SECONDS
