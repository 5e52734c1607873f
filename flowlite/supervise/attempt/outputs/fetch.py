"""The outputs of one attempt, brought here before its nodes are given back.

Every node lists its files, then they come one by one, each whole or not at all; what an earlier try or an earlier
supervisor has brought is not brought again. Nodes that have the same directory, such as those of one machine, bring it
once, from the lowest rank. A node that does not answer is waited for as for results (holdings.py) if every rank ended
well, and else for a moment; time in which something comes does not count.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowlite.connect import fetching
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.system.byte_sizes import human_size
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.outputs.landing import Landing, Taken
from flowlite.supervise.attempt.outputs.manifest import OutputFile, OutputManifest, ask
from flowlite.supervise.attempt.reachability import GivenUp, Lost, Reachability
from flowlite.supervise.attempt.unfetched import PATIENCE, PATIENCE_BADLY

MOST_BYTES = 200 * 10**9
"""So much of one task is brought; more needs a volume, or a bucket."""
_TELL_EVERY = 2.0
_AGAIN = 1.0


@dataclass(slots=True)
class Brought:
    """What came, and what did not.

    Attributes:
        to: The directory on this machine.
        files: How many files are here.
        missing: Why a node's files are not all here, by its rank.
        taken: Paths here that another file has.
        left_out: What is never brought, by reason: how many.
    """

    to: str
    files: int = 0
    bytes: int = 0
    missing: dict[int, str] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "to": self.to,
            "files": self.files,
            "bytes": self.bytes,
            "missing": {str(rank): why for rank, why in self.missing.items()},
            "taken": self.taken[:100],
            "left_out": self.left_out,
        }

    def sentence(self) -> str:
        """`3 files (12 MB) in /here/flow-outputs/train-t0abc`."""
        if not self.files and not self.missing:
            return "no file fits outputs="
        number = "1 file" if self.files == 1 else f"{self.files:,} files"
        told = [f"{number} ({human_size(self.bytes)}) in {self.to}" if self.files else ""]
        told += [f"not all of node {rank}: {why}" for rank, why in list(self.missing.items())[:3]]
        if self.taken:
            told.append(f"not written over other files: {', '.join(self.taken[:3])}")
        told += [f"left out: {number} {why}" for why, number in self.left_out.items()]
        return "; ".join(filter(None, told))


class Fetch:
    """Brings the outputs of one attempt."""

    def __init__(
        self,
        patterns: Sequence[str],
        to: Path,
        nodes: Sequence[Node],
        reach: Reachability,
        tell: Callable[[str], None],
        before_writing: Callable[[], None],
    ) -> None:
        """
        Args:
            tell: Told how far it is, now and then.
            before_writing: Raises if another supervisor leads now.
        """
        self._patterns = tuple(patterns)
        self._landing = Landing(to)
        self._nodes = nodes
        self._reach = reach
        self._tell = tell
        self._before_writing = before_writing
        self._manifests: dict[int, OutputManifest] = {}
        self._files: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._moved = self._told = time.monotonic()
        self._stop = threading.Event()
        self._brought = Brought(str(to))

    async def bring(
        self, *, ended_well: bool, lost: Collection[str], given_up: asyncio.Event
    ) -> Brought:
        """Brings all there is.

        Args:
            lost: Instances that nobody asks again.
            given_up: Set when nobody waits any more.

        Raises:
            LeaseLost: Another supervisor leads now.
        """
        patience = PATIENCE if ended_well else PATIENCE_BADLY
        asked = [node for node in self._nodes if node.instance.id not in lost]
        for node in self._nodes:
            if node.instance.id in lost:
                self._brought.missing[node.rank] = "it is lost"
        try:
            await self._all(asked, self._list, patience, given_up)
            await self._all(self._chosen(asked), self._fetch, patience, given_up)
        finally:
            self._stop.set()
        self._brought.files = sum(self._files.values())
        self._brought.bytes = sum(self._bytes.values())
        if not self._brought.missing:
            self._landing.finish()
        return self._brought

    def _chosen(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes to fetch from: one for each place."""
        places: dict[str, Node] = {}
        for node in nodes:
            manifest = self._manifests.get(node.rank)
            if manifest is not None:
                places.setdefault(manifest.place, node)
        total = sum(self._manifests[node.rank].size for node in places.values())
        if total > MOST_BYTES:
            why = (
                f"{human_size(total)} fit outputs=, and {human_size(MOST_BYTES)} of a task are brought; write so much "
                "into a volume or a bucket"
            )
            self._brought.missing |= {node.rank: why for node in places.values()}
            return []
        for node in places.values():
            for why, number in self._manifests[node.rank].left_out.items():
                self._brought.left_out[why] = self._brought.left_out.get(why, 0) + number
        return list(places.values())

    async def _all(
        self,
        nodes: Sequence[Node],
        do: Callable[[Node], None],
        patience: float,
        given_up: asyncio.Event,
    ) -> None:
        """Does something on all of these nodes at once, and tells how far it is."""
        self._moved = time.monotonic()
        waiting = {asyncio.create_task(self._each(node, do, patience, given_up)) for node in nodes}
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=_AGAIN)
                for task in done:
                    task.result()
                self._before_writing()
                self._tell_progress()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _each(
        self,
        node: Node,
        do: Callable[[Node], None],
        patience: float,
        given_up: asyncio.Event,
    ) -> None:
        """Does something on a node until it is done, or is not waited for any more."""
        missing = self._brought.missing
        while True:
            try:
                await self._reach.persist(node, do, given_up, changes=False)
                missing.pop(node.rank, None)
                return
            except GivenUp:
                missing[node.rank] = "it was not waited for any more"
                return
            except Lost as error:
                missing[node.rank] = error.finding.why
            except NodeUnreachable as error:
                missing[node.rank] = str(error)
            except ProviderError as error:
                missing[node.rank] = str(error)
                return
            except OSError as error:
                where = error.filename or self._brought.to
                missing[node.rank] = f"{error.strerror or error}: {where}"
            if given_up.is_set() or time.monotonic() - self._moved > patience:
                return
            await asyncio.sleep(_AGAIN)

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told < _TELL_EVERY:
            return
        self._told = now
        total = sum(
            manifest.size for rank, manifest in self._manifests.items() if rank in self._bytes
        )
        come = sum(self._bytes.values())
        text = (
            f"outputs: {human_size(come)} of {human_size(total)} are here" if total else "outputs"
        )
        behind = "; ".join(
            f"node {rank}: {why}" for rank, why in sorted(self._brought.missing.items())[:3]
        )
        self._tell(f"{text}; {behind}" if behind else text)

    # In a thread

    def _list(self, node: Node) -> None:
        settings = node.settings
        self._manifests[node.rank] = ask(
            node.connection,
            (settings.python, "-I", "-S", node.agent),
            home=settings.home,
            patterns=self._patterns,
        )

    def _fetch(self, node: Node) -> None:
        manifest = self._manifests[node.rank]
        below = f"node{node.rank}/" if len(self._nodes) > 1 else ""
        self._files[node.rank] = self._bytes[node.rank] = 0
        for file in manifest.files:
            come = self._bytes[node.rank]
            if self._one(node, f"{below}{file.path}", file):
                self._files[node.rank] += 1
                self._bytes[node.rank] = come + file.size
        for path, target in manifest.links:
            try:
                self._landing.link(f"{below}{path}", target)
            except Taken:
                self._note_taken(f"{below}{path}")

    def _one(self, node: Node, path: str, file: OutputFile) -> bool:
        """Brings one file. False if it is not to be had, or not to be put here."""
        source = f"{self._manifests[node.rank].root}/{file.path}"

        def read(offset: int) -> Iterator[bytes]:
            for block in node.connection.read(source, offset):
                if self._stop.is_set():
                    raise NodeUnreachable("it was not waited for any more")
                self._moved = time.monotonic()
                self._bytes[node.rank] += len(block)
                yield block

        try:
            self._landing.take(path, file, lambda staged: fetching.fetch(read, staged, file.size))
        except Taken:
            self._note_taken(path)
            return False
        except FileNotFoundError:
            why = "removed while they came"
            self._brought.left_out[why] = self._brought.left_out.get(why, 0) + 1
            return False
        return True

    def _note_taken(self, path: str) -> None:
        if path not in self._brought.taken:
            self._brought.taken.append(path)
