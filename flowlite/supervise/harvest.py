"""What a gang leaves on the disks of its nodes, brought home before they are given back: logs, results, reports."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flowlite import masking
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.roster import global_rank
from flowlite.supervise.collect import LOGS, Collector, add_all
from flowlite.supervise.crew import Crew
from flowlite.supervise.nodes import Node
from flowlite.supervise.paths import TaskPaths
from flowlite.supervise.reach import GivenUp, Lost, Reach

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
    reach: Reach

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
        given_up: asyncio.Event,
    ) -> None:
        """Fetches the results, what is missing of the logs, and after a bad end the agents' own logs.

        A node that does not answer is waited for until it is known to be lost, or `given_up` is set.
        """
        clean = ended_well and not self.behind
        began, todo = time.monotonic(), list(nodes)
        while todo:
            before_writing()
            fetches = [self._fetch_from(node, clean, given_up, warn) for node in todo]
            problems = await asyncio.gather(*fetches)
            patience = _KEEP_SECONDS if any(map(_is_ours, problems)) else _FETCH_SECONDS
            todo = [node for node, problem in zip(todo, problems, strict=True) if problem]
            if not todo or time.monotonic() > began + patience:
                return
            told = next(str(problem) for problem in problems if problem)
            warn(f"output of {todo[0].name} waits there: {told}")
            await asyncio.sleep(KEEP_EVERY)

    async def _fetch_from(
        self, node: Node, clean: bool, given_up: asyncio.Event, warn: Callable[[str], None]
    ) -> Exception | None:
        try:
            return await self.reach.persist(node, lambda it: self._fetch(it, clean), given_up)
        except (Lost, GivenUp) as error:
            why = str(error) or "it does not answer"
            warn(f"{node.name} is out of reach, and what it had not sent is missing: {why}")
            return None

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
                kept = self.paths.agent_log(self.attempt, node.rank)
                node.get("agent.log", kept)
                masking.of_file(self.paths.secrets).file(kept)
        except (NodeUnreachable, ConnectionError, TimeoutError):
            raise
        except (ProviderError, OSError) as error:
            return error
        return None

    def _sweep(self, node: Node, rank: int, stream: str) -> None:
        with suppress(FileNotFoundError):
            offset = self.collector.size(rank, stream)
            blocks = node.read(f"r{rank}.{stream}", offset)
            add_all(self.collector, rank, node.rank, stream, offset, blocks, time.time())


def _is_ours(problem: Exception | None) -> bool:
    """Whether it is the disk here that is in the way."""
    return isinstance(problem, OSError) and problem.errno in _OUR_DISK
