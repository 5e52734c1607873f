"""How an attempt ended: as its leader said or, if the leader cannot be asked, as the reports on disk say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from flowlite.node.config.ranks import node_of
from flowlite.node.protocol import messages
from flowlite.node.quick_dataclass import dataclass
from flowlite.supervise.attempt.leader_events import trimmed
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.unfetched import MissingOnNode
from flowlite.supervise.record import wording


@dataclass(slots=True)
class End:
    """The end of an attempt.

    Attributes:
        outcome: One of `messages.OUTCOMES`.
        reason: One line for people.
        workers: The last report of each rank that is known to have ended.
        replace: Instances that must not be used again.
        lacking: Logs and results that were not fetched.
        ended_well: Whether every rank ended well, though the attempt did not because files are lacking.
    """

    outcome: str
    reason: str
    workers: dict[int, dict[str, Any]] = field(default_factory=dict)
    replace: tuple[str, ...] = ()
    lacking: tuple[MissingOnNode, ...] = ()
    ended_well: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns how the gang ended, as plain JSON values."""
        workers = [self.workers[rank] for rank in sorted(self.workers)]
        return {"outcome": self.outcome, "reason": self.reason, "workers": workers}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> End:
        """Rebuilds an end from `to_json`."""
        workers = {int(body["rank"]): dict(body) for body in value["workers"]}
        return cls(str(value["outcome"]), str(value["reason"]), workers)


def taken_away(end: End, instances: Sequence[str]) -> End:
    """Returns the end as a preemption, after the provider said that it has taken machines away."""
    verb = "was" if len(instances) == 1 else "were"
    reason = f"{', '.join(instances)} {verb} taken away without notice ({end.reason})"
    replaced = tuple({*end.replace, *instances})
    return replace(end, outcome=messages.PREEMPTED, reason=reason, replace=replaced)


def end_by_leader(event: dict[str, Any], workers: dict[int, dict[str, Any]]) -> End:
    """Returns the end as the leader's "ended" event describes it."""
    outcome, reason = str(event["outcome"]), str(event["reason"])
    first = event.get("first_failure")
    if outcome == messages.FAILED and first:
        reason = wording.first_failure(first)
    return End(outcome, reason, workers)


def end_by_reports(
    nodes: Sequence[Node],
    workers: dict[int, dict[str, Any]],
    world_size: int,
    stop: End | None,
    tell: Callable[[dict[str, Any]], None],
    *,
    lived: bool = False,
) -> End:
    """Returns the end as the agents' reports describe it. Its outcome is LOST if they do not.

    Args:
        nodes: The nodes, with the reports found on them.
        workers: What is known about workers that have ended. Completed from the reports.
        world_size: Workers of the whole gang.
        stop: The end of a gang that was told to stop; None if it was not.
        tell: Called with every failure, as for events of the leader.
        lived: Whether the leader had no report when it was stopped. A signal that it reports was then sent by us.
    """
    for node in nodes:
        for body in (node.report_seen or {}).get("workers", ()):
            rank = body["rank"]
            if node_of(rank, world_size // len(nodes)) == node.rank:
                workers.setdefault(rank, {**trimmed(body), "node": node.rank})
    leader = nodes[0].report_seen or {}
    outcome, reason = leader.get("outcome"), str(leader.get("reason") or "")
    if lived and outcome == messages.PREEMPTED:
        outcome = None
    bad = [body for body in workers.values() if wording.failed_by_itself(body)]
    if outcome == messages.FAILED or (outcome is None and bad and stop is None):
        first = leader.get("first_failure") if outcome == messages.FAILED else None
        return _failed(first["rank"] if first else None, bad, workers, reason, tell)
    if outcome in messages.OUTCOMES:
        return End(str(outcome), reason, workers)
    if stop is not None:
        return stop
    return End(messages.LOST, "", workers)


def ended_whole(workers: Mapping[int, Mapping[str, Any]], world_size: int) -> bool:
    """Whether every rank has ended well and was not stopped."""
    well = not any(messages.failed(body) or body.get("stopped") for body in workers.values())
    return len(workers) == world_size and well


def _failed(
    named: int | None,
    bad: list[dict[str, Any]],
    workers: dict[int, dict[str, Any]],
    reason: str,
    tell: Callable[[dict[str, Any]], None],
) -> End:
    # The leader knows which rank failed first. Without it, the clocks of several machines have to be compared.
    first = None if named is None else workers.get(named)
    if first is None:
        first = min(bad, key=lambda body: float(body.get("ended") or 0), default=None)
    for body in bad:
        tell({**body, "kind": "worker"})
    if first is None:
        return End(messages.FAILED, reason, workers)
    tell({**first, "kind": "first_failure"})
    return End(messages.FAILED, wording.first_failure(first), workers)
