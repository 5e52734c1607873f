"""Reads how the ranks of a task ended from the result files of its nodes.

The client reads those files only through this module. A caller must say whether pickles may be loaded, once for values
and exceptions alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.api.gang_shape import worker_node
from flowlite.node.quick_dataclass import dataclass

if TYPE_CHECKING:
    from flowlite.bundle.result import Outcome
    from flowlite.state.store import TaskRecord
    from flowlite.supervise.record.paths import TaskPaths


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The result files of a task's last attempt.

    Attributes:
        record: The task.
        paths: The paths of its files.
        allow_pickle: Whether a pickle may be loaded. If False, nothing in a file can run code here: a pickled value is
            refused, and an exception becomes a `RemoteError`. A task with `results="plain"` never allows pickles, nor
            does a command, whose workers send none.
    """

    record: TaskRecord
    paths: TaskPaths
    allow_pickle: bool

    def of(self, rank: int, node: int | None = None) -> Outcome:
        """How a rank ended. `node` is where it ran, from its own report; by default from the plan.

        Raises:
            ResultUnavailable: The file is missing, cut off or damaged, or it holds a pickle that is refused or fails to
                load.
        """
        from flowlite.bundle.result import load_result

        record = self.record
        plain = record.config.get("results") == "plain" or bool(record.config.get("command"))
        return load_result(
            self.paths.result(record.attempt, rank),
            allow_pickle=self.allow_pickle and not plain,
            node=worker_node(record, rank) if node is None else node,
            rank=rank,
            task_name=record.name,
            task_id=record.id,
            attempt=record.attempt,
        )
