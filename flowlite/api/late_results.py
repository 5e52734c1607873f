"""Fetches results and logs of an ended task from nodes that did not answer when it ended.

The supervisor records them in an event "lacking": {"nodes": [{"node", "instance", "files": {name: bytes or None},
"kept"}], "ended_well"}. An event "brought" ({"node"}) says that everything was fetched from a node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from flowlite.errors import FlowError
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings import edited_files
from flowlite.supervise.attempt.log_writer import Collector

if TYPE_CHECKING:
    from flowlite.api.session import Session
    from flowlite.connect.base import Connection
    from flowlite.provider import Instance, Provider
    from flowlite.state.store import Event, TaskRecord

_RESULT = "result"
# Seconds to wait for a node's files if the task failed for another reason as well.
_AT_ONCE = 3.0
_LONGEST_CHECK = 60.0


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The missing results and logs of a task's last attempt, by node, and whether every rank ended well."""

    ended_well: bool
    nodes: Sequence[Mapping[str, Any]]


def lacking(record: TaskRecord, events: Iterable[Event]) -> MissingFiles | None:
    """What is still missing of the last attempt, from the task's events; None if nothing was ever missing."""
    told: Mapping[str, Any] | None = None
    brought: set[int] = set()
    for event in events:
        if event.data.get("attempt") != record.attempt:
            continue
        if event.kind == "lacking":
            told = event.data
        elif event.kind == "brought":
            brought.add(int(event.data["node"]))
    if told is None:
        return None
    nodes = [each for each in told["nodes"] if int(each["node"]) not in brought]
    return MissingFiles(bool(told["ended_well"]), nodes)


def ended_well(record: TaskRecord, events: Iterable[Event]) -> bool:
    """Whether the task failed only because files were missing, all of which have been fetched by now."""
    told = lacking(record, events)
    return told is not None and told.ended_well and not told.nodes


def bring(session: Session, record: TaskRecord) -> list[str]:
    """Fetches the missing files from nodes that answer now, and has those nodes delete their copies.

    If every rank ended well, the task's result depends on these files, so the fetch is waited for. Otherwise a node
    that does not answer within a few seconds is left for a later call. Returns, for each node whose files could not be
    fetched, the reason as a sentence.
    """
    told = lacking(record, session.store.events(record.id))
    if told is None or not any(each["kept"] for each in told.nodes):
        return []
    from flowlite.provider import Instance, provider_of_task

    provider = provider_of_task(record, session.home)
    instances = {row.id: row for row in session.store.instances(record.id)}
    fetches = []
    for each in told.nodes:
        if each["kept"]:
            instance = Instance.from_json(instances[each["instance"]].data)
            fetches.append(_Fetch(session, provider, instance, record, each))
            fetches[-1].start()
    until = time.monotonic() + _AT_ONCE
    for fetch in fetches:
        fetch.join(None if told.ended_well else max(0.0, until - time.monotonic()))
    return [f"{fetch.where}: {fetch.problem}" for fetch in fetches if not fetch.is_here]


class _Fetch(threading.Thread):
    """Fetches the missing files of one node and records their arrival. It goes on if its caller stops waiting."""

    def __init__(
        self,
        session: Session,
        provider: Provider,
        instance: Instance,
        record: TaskRecord,
        told: Mapping[str, Any],
    ) -> None:
        super().__init__(daemon=True)
        self._store = session.store
        self._provider = provider
        self._instance = instance
        self._record = record
        self._paths = session.paths(record.id)
        self._told = told
        self._node = int(told["node"])
        self.where = f"node {told['node']} ({instance.id})"
        self.problem = "it does not answer at once"
        self.is_here = False

    def run(self) -> None:
        try:
            with edited_files.locked(self._paths.directory / f"bring-n{self._node}"):
                # Another process may have fetched them, and had the node delete them, while this one waited.
                if self._is_lacking():
                    self._bring()
                    self._paths.make_output_durable(self._record.attempt)
                    self._provider.forget([self._instance])
                    data = {"attempt": self._record.attempt, "node": self._node}
                    text = f"what {self.where} had kept is here"
                    self._store.add_event(self._record.id, "brought", text, data)
            self.is_here = True
        except (FlowError, OSError) as error:
            self.problem = str(error) or type(error).__name__

    def _is_lacking(self) -> bool:
        told = lacking(self._record, self._store.events(self._record.id))
        return told is not None and any(int(each["node"]) == self._node for each in told.nodes)

    def _bring(self) -> None:
        from flowlite.provider import Plan

        record, paths, node = self._record, self._paths, self._node
        home = self._provider.node_settings(Plan.from_json(record.plan), self._instance).home
        collector = Collector(paths, record.attempt)
        with closing(collector), self._provider.connect(self._instance) as connection:
            _refuse_what_others_write(connection, f"{home}/a{record.attempt}")
            for name, size in self._told["files"].items():
                source = f"{home}/a{record.attempt}/{name}"
                rank, stream = _parsed(name)
                offset = collector.size(rank, stream)
                if stream != _RESULT and size and offset >= size:
                    continue
                # A file of unknown size may not exist.
                with suppress(*(() if size else (FileNotFoundError,))):
                    if stream == _RESULT:
                        connection.get(source, paths.result(record.attempt, rank), size=size)
                    else:
                        blocks = connection.read(source, offset)
                        collector.add_all(rank, node, stream, offset, blocks, size)
                        _check_size(source, collector.size(rank, stream), size)


def _refuse_what_others_write(connection: Connection, directory: str) -> None:
    """Raises OSError if other users of a node could have made what is in a directory.

    It may be long since the task ended: the host may have lost the directory, and somebody else have made it anew.
    """
    from flowlite.connect.programs import SAFE_IN_SHELL, UNSAFE, unsafe
    from flowlite.connect.ssh.quoting import readable

    script = f'{SAFE_IN_SHELL}safe "$1" || exit {UNSAFE}'
    done = connection.run(["sh", "-c", script, "sh", directory], timeout=_LONGEST_CHECK)
    if done.code:
        said = readable(done.stderr.strip().rpartition(b"\n")[2]) or f"exit status {done.code}"
        raise PermissionError(unsafe(said) if done.code == UNSAFE else said)


def _check_size(source: str, have: int, size: int | None) -> None:
    """Raises OSError if a file ended early, so that its node does not delete it."""
    if size and have < size:
        raise OSError(f"{source}: {have} bytes of {size} came")


def _parsed(name: str) -> tuple[int, str]:
    rank, _, stream = name.partition(".")
    return int(rank[1:]), stream
