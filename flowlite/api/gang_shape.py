"""How many workers a task has, and on which nodes they run, from the record of the task."""

from __future__ import annotations

from flowlite.node.config import ranks
from flowlite.state.store import TaskRecord
from flowlite.supervise.gang_size import nodes_of


def worker_node(record: TaskRecord, rank: int) -> int:
    """The node of a rank."""
    return ranks.node_of(rank, workers_per_node(record))


def workers_per_node(record: TaskRecord) -> int:
    """How many workers run on each node."""
    if record.config.get("distributed_mode", "auto") != "auto":
        return 1
    return int(record.plan.get("processes_per_node", 1))


def world_size(record: TaskRecord) -> int:
    """How many workers the gang has in its present or last attempt."""
    return nodes_of(record) * workers_per_node(record)
