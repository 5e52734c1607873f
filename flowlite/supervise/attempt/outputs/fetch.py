"""Fetches the outputs of one attempt before its nodes are given back.

Every node lists its files, which are then fetched, small ones in packs and large ones one by one, each completely or
not at all. Files that an earlier try or supervisor has fetched are skipped. Nodes that share a directory, such as those
on one machine, are fetched once, from the lowest rank. If every rank ended well, a node that does not answer is waited
for as long as for results (`attempt/unfetched.py`), else only briefly. Time in which data arrives does not count.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from flowlite.connect import fetching
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.byte_sizes import human_size
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.outputs import packs
from flowlite.supervise.attempt.outputs.manifest import UNREADABLE, OutputFile, OutputManifest, ask
from flowlite.supervise.attempt.outputs.output_directory import NameTaken, OutputDirectory
from flowlite.supervise.attempt.reachability import GivenUp, NodeLost, Reachability
from flowlite.supervise.attempt.unfetched import PATIENCE, PATIENCE_BADLY

MOST_BYTES = 200 * 10**9
"""Bytes fetched of one task at most. Larger outputs need a volume or a bucket."""
_TELL_EVERY = 2.0
_AGAIN = 1.0


@dataclass(slots=True)
class FetchedOutputs:
    """What was fetched, and what was not.

    Attributes:
        to: The directory on this machine.
        files: Number of files fetched.
        bytes: Their size.
        missing: Why a node's files are not complete, by its rank.
        taken: Paths that exist on this machine as another file.
        left_out: Number of files that are never fetched, by reason.
    """

    to: str
    files: int = 0
    bytes: int = 0
    missing: dict[int, str] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON values."""
        return {
            "to": self.to,
            "files": self.files,
            "bytes": self.bytes,
            "missing": {str(rank): why for rank, why in self.missing.items()},
            "taken": self.taken[:100],
            "left_out": self.left_out,
        }

    def sentence(self) -> str:
        """Returns a sentence such as `3 files (12 MB) in /here/flow-outputs/train-t0abc`."""
        if not (self.files or self.missing or self.taken or self.left_out):
            return "no file fits outputs="
        number = "1 file" if self.files == 1 else f"{self.files:,} files"
        told = [f"{number} ({human_size(self.bytes)}) in {self.to}" if self.files else ""]
        told += [f"not all of node {rank}: {why}" for rank, why in list(self.missing.items())[:3]]
        if self.taken:
            told.append(f"not written over other files: {', '.join(self.taken[:3])}")
        told += [f"left out: {number} {why}" for why, number in self.left_out.items()]
        return "; ".join(filter(None, told))


class _LeftOut(Exception):
    """The node cannot give the file; the text says why. A file that is missing here is an error of this machine."""


class OutputFetch:
    """Fetches the outputs of one attempt."""

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
            patterns: As in `outputs=`.
            nodes: The nodes by rank.
            tell: Called now and then with the progress.
            before_writing: Raises if another supervisor has taken over.
        """
        self._patterns = tuple(patterns)
        self._landing = OutputDirectory(to, own=True)
        self._nodes = nodes
        self._reach = reach
        self._tell = tell
        self._before_writing = before_writing
        self._manifests: dict[int, OutputManifest] = {}
        self._files: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        # Files that are not asked for again, though none of that size and time is here: whether they came.
        self._settled: dict[str, bool] = {}
        self._moved = self._told = time.monotonic()
        self._patience = PATIENCE
        self._stop = threading.Event()
        self._brought = FetchedOutputs(str(to))

    async def bring(
        self, *, ended_well: bool, lost: Collection[str], given_up: asyncio.Event
    ) -> FetchedOutputs:
        """Fetches all outputs.

        Args:
            ended_well: Whether every rank ended well.
            lost: Instances that the gang has lost. They are asked again only if every rank ended well.
            given_up: Set when waiting ends.

        Raises:
            LeaseLost: Another supervisor has taken over.
        """
        self._patience = PATIENCE if ended_well else PATIENCE_BADLY
        left_alone = () if ended_well else lost
        asked = [node for node in self._nodes if node.instance.id not in left_alone]
        for node in self._nodes:
            if node.instance.id in left_alone:
                self._brought.missing[node.rank] = "it is lost"
        try:
            await self._all(asked, self._list, given_up)
            await self._all(self._chosen(asked), self._fetch, given_up)
        finally:
            self._stop.set()
        self._brought.files = sum(self._files.values())
        self._brought.bytes = sum(self._bytes.values())
        if not self._brought.missing:
            self._landing.finish()
        return self._brought

    def _chosen(self, nodes: Sequence[Node]) -> list[Node]:
        """Returns the nodes to fetch from: one for each distinct directory."""
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
        self, nodes: Sequence[Node], do: Callable[[Node], None], given_up: asyncio.Event
    ) -> None:
        """Calls a function for all these nodes concurrently, and reports progress."""
        self._moved = time.monotonic()
        waiting = {asyncio.create_task(self._each(node, do, given_up)) for node in nodes}
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

    async def _each(self, node: Node, do: Callable[[Node], None], given_up: asyncio.Event) -> None:
        """Calls a function for a node until it succeeds, or until the node is not waited for any more."""
        missing = self._brought.missing
        while True:
            try:
                await self._reach.persist(node, do, given_up, changes=False)
                missing.pop(node.rank, None)
                return
            except GivenUp:
                missing[node.rank] = "it was not waited for any more"
                return
            except NodeLost as error:
                missing[node.rank] = error.finding.why
            except NodeUnreachable as error:
                missing[node.rank] = str(error)
            except ProviderError as error:
                missing[node.rank] = str(error)
                return
            except OSError as error:
                where = error.filename or self._brought.to
                missing[node.rank] = f"{error.strerror or error}: {where}"
            if given_up.is_set() or time.monotonic() - self._moved > self._patience:
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

    # Called in threads

    def _list(self, node: Node) -> None:
        self._manifests[node.rank] = ask(
            node.connection, node.program, home=node.settings.home, patterns=self._patterns
        )

    def _fetch(self, node: Node) -> None:
        manifest = self._manifests[node.rank]
        below = f"node{node.rank}/" if len(self._nodes) > 1 else ""
        self._files[node.rank] = self._bytes[node.rank] = 0
        for group in packs.groups([f for f in manifest.files if self._is_lacking(node, below, f)]):
            for file in group if len(group) == 1 else self._pack(node, below, group):
                come = self._bytes[node.rank]
                if self._one(node, f"{below}{file.path}", file):
                    self._has(node, file.size, come)
        for path, target in manifest.links:
            try:
                self._landing.link(f"{below}{path}", target)
            except NameTaken:
                self._note_taken(f"{below}{path}")

    def _is_lacking(self, node: Node, below: str, file: OutputFile) -> bool:
        """Whether a file has to be fetched. If it is here, it is counted as fetched."""
        path = f"{below}{file.path}"
        came = self._settled.get(path, self._landing.has(path, file))
        if came:
            self._has(node, file.size, self._bytes[node.rank])
        return not came and path not in self._settled

    def _has(self, node: Node, size: int, before: int) -> None:
        self._files[node.rank] += 1
        self._bytes[node.rank] = before + size

    def _pack(self, node: Node, below: str, group: Sequence[OutputFile]) -> list[OutputFile]:
        """Fetches small files in one request. Returns those that have changed, to be fetched one by one."""
        root = self._manifests[node.rank].root
        contents = packs.fetch(node.connection, node.program, root, group)
        if self._stop.is_set():
            raise NodeUnreachable("it was not waited for any more")
        self._moved = time.monotonic()
        come = [
            (f"{below}{file.path}", file, self._source(node, file), content)
            for file, content in zip(group, contents, strict=True)
            if content is not None
        ]
        taken = set(self._landing.take_all(come))
        for path, file, _, _ in come:
            if path in taken:
                self._note_taken(path)
            else:
                self._has(node, file.size, self._bytes[node.rank])
        return [file for file, content in zip(group, contents, strict=True) if content is None]

    def _one(self, node: Node, path: str, file: OutputFile) -> bool:
        """Fetches one file. False if the node does not give it, or if its path here is taken."""
        place = f"{self._manifests[node.rank].root}/{file.path}"

        def read(offset: int) -> Iterator[bytes]:
            try:
                for block in node.connection.read(place, offset):
                    if self._stop.is_set():
                        raise NodeUnreachable("it was not waited for any more")
                    self._moved = time.monotonic()
                    self._bytes[node.rank] += len(block)
                    yield block
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise _LeftOut("removed while they came") from error
            except PermissionError as error:
                raise _LeftOut(UNREADABLE) from error

        source = self._source(node, file)
        try:
            self._landing.take(
                path, file, source, lambda staged: fetching.fetch_changing(read, staged, file.size)
            )
        except NameTaken:
            self._note_taken(path)
            return False
        except _LeftOut as error:
            why = str(error)
            self._brought.left_out[why] = self._brought.left_out.get(why, 0) + 1
            self._settled[path] = False
            return False
        if not self._landing.has(path, file):
            # It has changed since it was listed, and came as it is now.
            self._settled[path] = True
        return True

    def _source(self, node: Node, file: OutputFile) -> str:
        return f"{node.instance.id} {self._manifests[node.rank].root}/{file.path}"

    def _note_taken(self, path: str) -> None:
        if path not in self._brought.taken:
            self._brought.taken.append(path)
