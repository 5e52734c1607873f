"""How many nodes an attempt of a gang lacks, and how long it waits for them.

The size of a gang is a property of its attempt: the length of its roster. A plan bounds it
(`Plan.fewest_instances` to `Plan.num_instances`); in a gang of one size, both are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from flowlite.state.records import TaskRecord
    from flowlite.supervise.record.task_view import TaskView


class LackingNodes(NamedTuple):
    """What an attempt lacks before it begins.

    Attributes:
        needed: Nodes without which it does not begin.
        awaited: Nodes that are waited for: all at the first start, later those that were lost.
        most: Nodes that it takes if there is room for them.
        seconds: How long it waits for those that it does not need.
    """

    needed: int
    awaited: int
    most: int
    seconds: float

    @classmethod
    def of(cls, asked: TaskView, before: int, kept: int) -> LackingNodes:
        """What an attempt lacks.

        Args:
            before: Nodes of the attempt before; 0 if there was none.
            kept: Those that remain, and the spares that take the ranks of lost ones.
        """
        plan = asked.plan
        # The first launch is also for the spares. Later ones are replaced while an attempt runs.
        spares = 0 if before else plan.spares
        most = plan.num_instances + spares
        return cls(
            needed=max(0, plan.fewest_instances + spares - kept),
            awaited=(before or most) - kept,
            most=most - kept,
            seconds=asked.heal_seconds if before else asked.settle_seconds,
        )


def nodes_of(record: TaskRecord) -> int:
    """How many nodes the present attempt has, or the last one; before the first attempt, how many it has at most."""
    return len(record.roster) or int(record.plan.get("num_instances", 1))


def bounds_of(record: TaskRecord) -> tuple[int, int]:
    """The fewest and the most nodes that an attempt may have."""
    most = int(record.plan.get("num_instances", 1))
    return int(record.plan.get("min_instances") or most), most


def in_words(record: TaskRecord) -> str:
    """The size of a gang: `4`, `2 to 8`, or `3 (2 to 8)` once an attempt has begun."""
    fewest, most = bounds_of(record)
    if fewest == most:
        return str(most)
    return f"{len(record.roster)} ({fewest} to {most})" if record.roster else f"{fewest} to {most}"
