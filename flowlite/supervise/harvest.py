"""What a gang leaves on the disks of its nodes, brought home before they are given back: logs, results, reports."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flowlite.errors import ProviderError
from flowlite.node.roster import global_rank
from flowlite.supervise.collect import LOGS, Collector, add_all
from flowlite.supervise.crew import Crew
from flowlite.supervise.nodes import Node
from flowlite.supervise.paths import TaskPaths

# Output that cannot be kept because the disk here is full is tried again, and waited for so long, before the nodes,
# which may cost money, are ended all the same. A node that does not answer is asked again for a shorter time.
KEEP_EVERY = 1.0
_KEEP_SECONDS = 600.0
_FETCH_SECONDS = 5.0
_OUR_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(eq=False, repr=False)
class Harvest:
    """Brings home what one attempt left. `workers` are the reports of the workers that are known to have ended."""

    paths: TaskPaths
    attempt: int
    workers_per_node: int
    collector: Collector
    workers: Mapping[int, Mapping[str, Any]]
    crew: Crew

    @property
    def behind(self) -> bool:
        """Whether logs are missing that are known to exist."""
        return any(
            self.collector.missing(rank, body.get("sizes") or {})
            for rank, body in self.workers.items()
        )

    async def bring_in(
        self,
        nodes: Sequence[Node],
        *,
        ended_well: bool,
        warn: Callable[[str], None],
        before_writing: Callable[[], None],
    ) -> None:
        """Fetches the results, what is missing of the logs, and after a bad end the agents' own logs."""
        clean = ended_well and not self.behind
        began, todo = time.monotonic(), list(nodes)
        while todo:
            before_writing()
            problems = await self.crew.each(todo, lambda node: self._fetch(node, clean))
            patience = _KEEP_SECONDS if any(map(_is_ours, problems)) else _FETCH_SECONDS
            todo = [node for node, problem in zip(todo, problems, strict=True) if problem]
            if not todo or time.monotonic() > began + patience:
                return
            told = next(str(problem) for problem in problems if problem)
            warn(f"output of {todo[0].name} waits there: {told}")
            await asyncio.sleep(KEEP_EVERY)

    def _fetch(self, node: Node, clean: bool) -> Exception | None:
        first = global_rank(node.rank, self.workers_per_node, 0)
        try:
            for rank in range(first, first + self.workers_per_node):
                body = self.workers.get(rank)
                sizes = None if body is None else body.get("sizes") or {}
                if not clean:
                    wanted = LOGS if sizes is None else self.collector.missing(rank, dict(sizes))
                    for stream in wanted:
                        self._sweep(node, rank, stream)
                if sizes is None or sizes.get("result"):
                    node.get(f"r{rank}.result", self.paths.result(self.attempt, rank))
            if not clean:
                node.get("agent.log", self.paths.agent_log(self.attempt, node.rank))
        except (ProviderError, OSError) as error:
            return error
        return None

    def _sweep(self, node: Node, rank: int, stream: str) -> None:
        with suppress(FileNotFoundError):
            blocks = node.read(f"r{rank}.{stream}", self.collector.size(rank, stream))
            add_all(self.collector, rank, node.rank, stream, blocks, time.time())


def _is_ours(problem: Exception | None) -> bool:
    """Whether it is the disk here that is in the way."""
    return isinstance(problem, OSError) and problem.errno in _OUR_DISK
