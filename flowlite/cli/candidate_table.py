"""The places where a task may run, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowlite.cli import output
from flowlite.provider import Candidate
from flowlite.supervise.money import price_text

if TYPE_CHECKING:
    from flowlite.api.candidates.ranking import Candidates
    from flowlite.provider import Plan
    from flowlite.state.records import TaskRecord

_HEADINGS = ("rank", "provider", "type", "gpu", "region", "spot", "per hour", "at most")
# Without room on a terminal, types are cut, and columns left out, GPUs first.
_LEAST = {"type": 12}
_LEAVE_OUT = {"spot": 1, "per hour": 2, "gpu": 3}


def show_candidates(places: Candidates) -> None:
    """Shows the places in the order in which they are tried, and what was left out, with the reasons."""
    from flowlite.api.candidates.ranking import reasons

    show_ranked(places.ranked)
    for names, why in reasons(places.left_out):
        output.say_wrapped(f"left out: {', '.join(names)}: {why}")


def show_ranked(ranked: Sequence[Candidate], present: int | None = None) -> None:
    """Shows the places in the order in which they are tried; `present` is the index of the one where the task is."""
    rows = [
        (f"{index + 1}{'*' if index == present else ''}", *_row(each.plan))
        for index, each in enumerate(ranked)
    ]
    output.table_of_lines(_HEADINGS, rows, _LEAST, _LEAVE_OUT)


def show_tried(record: TaskRecord) -> None:
    """Shows which places were tried, when, and why each was left."""
    for entry in record.tried:
        place = f"{entry['candidate'] + 1} ({_tried_at(record, entry)})"
        output.say_wrapped(f"{output.clock(entry['at'])}  {place}: {entry['why']}")


def tried_json(record: TaskRecord) -> list[dict[str, Any]]:
    """The places that were tried, in the JSON output of commands."""
    return [
        {
            "candidate": entry["candidate"],
            "place": _tried_at(record, entry),
            "at": output.json_time(entry["at"]),
            "why": entry["why"],
        }
        for entry in record.tried
    ]


def _tried_at(record: TaskRecord, entry: dict[str, Any]) -> str:
    return str(Candidate.from_json(record.candidates[entry["candidate"]]).plan.place)


def _row(plan: Plan) -> tuple[str, ...]:
    return (
        plan.provider,
        price_text.machines(plan),
        f"{plan.gpu}:{plan.gpus_per_node}" if plan.gpus_per_node else "",
        plan.region,
        "spot" if plan.spot else "",
        output.money(_hourly(plan)),
        _at_most(plan),
    )


def _at_most(plan: Plan) -> str:
    if plan.worst_case_cost is None:
        return "no limit"
    amount = output.money(plan.worst_case_cost)
    return f"{amount} or more" if plan.may_exceed else amount


def _hourly(plan: Plan) -> float:
    return (plan.price_per_hour + plan.extras_per_hour) * plan.machines


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """One place in the JSON output of commands."""
    plan = candidate.plan
    return {
        "options": candidate.options,
        "provider": plan.provider,
        "instance_type": plan.instance_type,
        "region": plan.region or None,
        "gpu": plan.gpu or None,
        "gpus_per_node": plan.gpus_per_node,
        "processes_per_node": plan.processes_per_node,
        "spot": plan.spot,
        "price_per_hour": plan.price_per_hour,
        "price_for_all": round(_hourly(plan), 6),
        **price_text.worst_case_json(plan),
    }


def candidates_json(places: Candidates) -> dict[str, Any]:
    """The places, the preferred one first, and what was left out, in the JSON output of commands."""
    return {
        "candidates": [candidate_json(each) for each in places.ranked],
        "left_out": [{"options": each.options, "why": each.why} for each in places.left_out],
    }
