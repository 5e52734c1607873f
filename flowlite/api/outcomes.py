"""How the ranks of a task ended, read from the files that came from its nodes, under one permission.

This is the one way to those files on the client. Whoever reads them has to say whether a pickle in them may be loaded,
and says it once, for values and exceptions alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowlite.api.gang_shape import worker_node

if TYPE_CHECKING:
    from flowlite.bundle.result import Outcome
    from flowlite.state.store import TaskRecord
    from flowlite.supervise.record.paths import TaskPaths


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The result files of a task's last attempt.

    Attributes:
        record: The task.
        paths: Where its files lie.
        allow_pickle: Whether a pickle may be loaded. False makes it impossible that anything in a file runs code here:
            a pickled value is refused, and an exception comes as `RemoteError`. A task with `results="plain"` allows no
            pickle in any case.
    """

    record: TaskRecord
    paths: TaskPaths
    allow_pickle: bool

    def of(self, rank: int, node: int | None = None) -> Outcome:
        """How a rank ended.

        Args:
            rank: Global rank.
            node: Where it ran, as its own report says; by default as the plan says.

        Raises:
            ResultUnavailable: Its file is missing, cut off or damaged, or it is a pickle and that is refused or fails
                to load.
        """
        from flowlite.bundle.result import load_result

        record = self.record
        return load_result(
            self.paths.result(record.attempt, rank),
            allow_pickle=self.allow_pickle and record.config.get("results") != "plain",
            node=worker_node(record, rank) if node is None else node,
            rank=rank,
            task_name=record.name,
            task_id=record.id,
            attempt=record.attempt,
        )
