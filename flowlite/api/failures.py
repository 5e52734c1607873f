"""How a task failed, as exceptions: the worker's own exception if it raised one, else `TaskFailed`."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flowlite.api import late_results
from flowlite.api.gang_shape import worker_node
from flowlite.api.masked_exceptions import masked
from flowlite.diagnosis import advice
from flowlite.errors import (
    RemoteError,
    RemoteTraceback,
    ResultUnavailable,
    TaskCancelled,
    TaskFailed,
)
from flowlite.node.config import distributed_modes
from flowlite.output import redact
from flowlite.state.store import Event, TaskRecord
from flowlite.supervise.record import wording

if TYPE_CHECKING:
    from flowlite.api.outcomes import Outcomes

# Kinds of failure that leave a result file with the exception in it.
_WITH_FILE = frozenset({"exception", "load", "result"})
_LAST_LINES = 10
_RANKS_IN_NOTE = 8


def exception_of(
    events: Iterable[Event], outcomes: Outcomes, *, seen: bool = False
) -> Exception | None:
    """The exception that `result()` raises for a final task; None if the task completed.

    A task that failed only because results or logs were missing counts as completed once they have been fetched. The
    exception is that of the first failure, with `failures` (all failed ranks, by rank) as an attribute. Its text does
    not repeat the output of the workers if this program has `seen` it.
    """
    record = outcomes.record
    if record.state == "completed":
        return None
    title = f"task {record.name} ({record.id})"
    if record.state == "cancelled":
        return TaskCancelled(f"{title} was {record.reason or 'cancelled'}")
    events = list(events)
    found = failures_of(events, outcomes, seen=seen)
    if not found and late_results.ended_well(record, events):
        return None
    if not found:
        return TaskFailed(
            f"{title} failed{_reason(record)}; all that happened: flow status {record.id}",
            task_id=record.id,
        )
    first = next(iter(found.values()))
    for text in _cause(record, events):
        first.add_note(text)
    others = [rank for rank, error in found.items() if error is not first]
    if isinstance(first, TaskFailed) or not hasattr(first, "failures"):
        with suppress(AttributeError, TypeError):
            first.failures = found  # type: ignore[attr-defined]
    for text in advice_for(record, events):
        first.add_note(text)
    if others:
        listed = ", ".join(map(str, others[:_RANKS_IN_NOTE]))
        more = ", …" if len(others) > _RANKS_IN_NOTE else ""
        first.add_note(f"also failed: rank {listed}{more}; see .failures, or task.failures()")
    return first


def _cause(record: TaskRecord, events: Iterable[Event]) -> list[str]:
    """What the supervisor knows beyond the first failure, such as that somebody has cancelled the job of Slurm."""
    bodies = failed_workers(record, events)
    if not bodies or record.reason in ("", wording.first_failure(bodies[0])):
        return []
    return [f"the task failed{_reason(record)}"]


def advice_for(record: TaskRecord, events: Iterable[Event]) -> list[str]:
    """Advice on the first failure of the last attempt, if it is a known one."""
    bodies = failed_workers(record, events)
    if not bodies:
        return []
    failure = bodies[0].get("failure") or {}
    said = f"{failure.get('type', '')}: {failure.get('message', '')}"
    where = f"rank {bodies[0]['rank']} on node {bodies[0].get('node', '?')}"
    found = advice.advice([said, *map(str, bodies[0].get("tail") or ())])
    return [f"{where}: {text}" for text in found]


def failures_of(
    events: Iterable[Event], outcomes: Outcomes, *, seen: bool = False
) -> dict[int, Exception]:
    """The exception of each failed rank of the last attempt, in the order in which they failed.

    Ranks that ended because the gang was being stopped do not count as failed. `seen` is that of `exception_of`.
    """
    bodies = failed_workers(outcomes.record, events)
    return {body["rank"]: _exception(body, outcomes, seen) for body in bodies}


def failed_workers(record: TaskRecord, events: Iterable[Event]) -> list[dict[str, Any]]:
    """The reports of the workers that failed in the last attempt, in the order in which the leader saw them."""
    first: dict[str, Any] | None = None
    others: dict[int, dict[str, Any]] = {}
    for event in events:
        body = event.data
        if body.get("attempt", record.attempt) != record.attempt or "rank" not in body:
            continue
        if event.kind == "first_failure":
            first = body
        elif event.kind == "worker" and (body.get("code") != 0 or body.get("failure")):
            others.setdefault(body["rank"], body)
    front = []
    if first is not None:
        others.pop(first["rank"], None)
        front = [first]
    stop = _stop_signal(record.config)
    return front + [body for body in others.values() if not _was_stopped(body, stop)]


def describe_end(body: Mapping[str, Any], *, launches: bool = False) -> str:
    """How a worker ended: `rank 3 on node 1 was killed by SIGKILL (out of memory?)`, `rank 0 … exited with 42`.

    Of one that `launches`, the processes have ranks of their own that are not known here.
    """
    who = "the command" if launches else f"rank {body['rank']}"
    where = f"{who} on node {body.get('node', '?')}"
    failure = body.get("failure") or {}
    if body.get("signal"):
        return (
            f"{where} was {wording.killed_by(int(body['signal']), str(failure.get('why') or ''))}"
        )
    if failure.get("kind") in _WITH_FILE:
        parts = (failure.get("type"), failure.get("message"))
        return f"{where}: " + ": ".join(str(part) for part in parts if part)
    why = f" ({failure['why']})" if failure.get("why") else ""
    # The message of a `sys.exit` is among the last lines of the output.
    told = "" if failure.get("type") else failure.get("message")
    return f"{where} {told or 'exited with ' + str(body.get('code'))}{why}"


def _exception(body: Mapping[str, Any], outcomes: Outcomes, seen: bool) -> Exception:
    record = outcomes.record
    failure = body.get("failure") or {}
    if failure.get("kind") not in _WITH_FILE:
        return TaskFailed(_message(record, body, seen), task_id=record.id)
    rank = int(body["rank"])
    with suppress(ResultUnavailable):
        error = outcomes.of(rank, int(body.get("node", worker_node(record, rank)))).exception
        if isinstance(error, Exception):
            if seen and isinstance(error.__cause__, RemoteTraceback):
                again = f"flow logs {record.id} --rank {rank}"
                error.__cause__.seen = f"shown above, in the output of rank {rank}; again: {again}"
            return masked(error, redact.of_file(outcomes.paths.secrets))
    return RemoteError(_message(record, body, seen), type_name=str(failure.get("type", "")))


def _message(record: TaskRecord, body: Mapping[str, Any], seen: bool) -> str:
    launches = (
        record.config.get("distributed_mode", distributed_modes.AUTO) == distributed_modes.MANUAL
    )
    lines = [f"task {record.name} ({record.id}): {describe_end(body, launches=launches)}"]
    tail = [] if seen else [str(line) for line in body.get("tail") or ()][-_LAST_LINES:]
    if tail:
        lines += ["last lines of its output:", *(f"  {line}" for line in tail)]
    which = f"--node {body.get('node', 0)}" if launches else f"--rank {body['rank']}"
    lines.append(f"all of its output: flow logs {record.id} {which}")
    return "\n".join(lines)


def _was_stopped(body: Mapping[str, Any], stop: int) -> bool:
    """Whether a worker ended because it was asked to stop."""
    if (body.get("failure") or {}).get("kind") in _WITH_FILE:
        return False
    signals = {stop, int(signal.SIGKILL)}
    return body.get("signal") in signals or body.get("code") in {128 + number for number in signals}


def _stop_signal(config: Mapping[str, Any]) -> int:
    name = str(config.get("stop_signal", "SIGTERM"))
    return int(getattr(signal, name, signal.SIGTERM))


def _reason(record: TaskRecord) -> str:
    return f": {record.reason}" if record.reason else ""
