"""Which workers have ended, and how. Each counts once, in the order in which their reports reach the leader."""

from __future__ import annotations

from typing import Any

from ..config.ranks import node_of
from ..protocol.messages import (
    GangSettings,
    Message,
    MessageError,
    body_of,
    describe_failure,
    failed,
)


class WorkerExits:
    """The ends of a gang's workers.

    Attributes:
        first: The body of the first report of a failure, or None.
    """

    def __init__(self, settings: GangSettings) -> None:
        self._settings = settings
        self._ends: set[int] = set()
        self._on_others = 0
        self.first: dict[str, Any] | None = None

    def add(self, node: int, message: Message) -> dict[str, Any] | None:
        """Counts a worker that ended. Returns the body of its report, or None if it was counted before.

        Raises:
            MessageError: That worker is not on this node.
        """
        rank = message["rank"]
        inside = 0 <= rank < self._settings.world_size
        if not inside or node_of(rank, self._settings.processes_per_node) != node:
            raise MessageError(
                f"{self._settings.name(node)} reports rank {rank}, which is not on it"
            )
        if rank in self._ends:
            return None
        self._ends.add(rank)
        self._on_others += node > 0
        body = {**body_of(message), "node": node}
        if self.first is None and failed(body):
            self.first = body
        return body

    @property
    def complete(self) -> bool:
        """Whether every worker has ended without a failure."""
        return self.first is None and len(self._ends) == self._settings.world_size

    @property
    def others_ended(self) -> bool:
        """Whether every worker that is not on the leader's node has ended."""
        settings = self._settings
        return self._on_others == settings.world_size - settings.processes_per_node

    @property
    def reason(self) -> str:
        """The first failure as text for users; "" if there is none."""
        return f"first failure: {describe_failure(self.first)}" if self.first else ""
