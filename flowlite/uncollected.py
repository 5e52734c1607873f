"""What a task that has ended left on nodes that did not answer then: brought when they answer again.

The supervisor has written an event "lacking" for it: {"nodes": [{"node", "instance", "files": {name: bytes or None},
"kept"}], "ended_well"}.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flowlite.connect.fetching import Partial
from flowlite.errors import ConfigError, ProviderError
from flowlite.supervise.collect import Collector, add_all
from flowlite.supervise.paths import TaskPaths

if TYPE_CHECKING:
    from flowlite.provider import Instance, Provider
    from flowlite.session import Session
    from flowlite.store import Event, TaskRecord

_RESULT = "result"


def lacking(record: TaskRecord, events: Iterable[Event]) -> Mapping[str, Any] | None:
    """What its supervisor has written of the last attempt; None where nothing was lacking."""
    found = None
    for event in events:
        if event.kind == "lacking" and event.data.get("attempt") == record.attempt:
            found = event.data
    return found


def is_here(record: TaskRecord, told: Mapping[str, Any], paths: TaskPaths) -> bool:
    """Whether all of it has been brought meanwhile."""
    return not any(_missing(record, each, paths) for each in told["nodes"])


def ended_well(record: TaskRecord, events: Iterable[Event], paths: TaskPaths) -> bool:
    """Whether it failed only since something was lacking, all of which is here now."""
    told = lacking(record, events)
    return told is not None and bool(told["ended_well"]) and is_here(record, told, paths)


def bring(session: Session, record: TaskRecord) -> list[str]:
    """Fetches what is kept on nodes that answer now, and has them forget it; gives why the others did not, in words."""
    told = lacking(record, session.store.events(record.id))
    if told is None:
        return []
    paths = session.paths(record.id)
    instances = {row.id: row for row in session.store.instances(record.id)}
    problems = []
    for each in told["nodes"]:
        if not each["kept"] or not _missing(record, each, paths):
            continue
        from flowlite.provider import Instance, provider_of_task

        provider = provider_of_task(record, session.home)
        instance = Instance.from_json(instances[each["instance"]].data)
        try:
            _bring_from(provider, instance, record, each, paths)
        except (ProviderError, ConfigError, OSError) as error:
            problems.append(f"node {each['node']} ({instance.id}): {error}")
    return problems


def _bring_from(
    provider: Provider,
    instance: Instance,
    record: TaskRecord,
    told: Mapping[str, Any],
    paths: TaskPaths,
) -> None:
    from flowlite.failures import workers_per_node
    from flowlite.provider import Plan

    home = provider.node_settings(Plan.from_json(record.plan), instance).home
    collector = Collector(paths, record.attempt, workers_per_node(record))
    try:
        with provider.connect(instance) as connection:
            for name, size in _missing(record, told, paths).items():
                source = f"{home}/a{record.attempt}/{name}"
                rank, stream = _parsed(name)
                if stream == _RESULT:
                    connection.get(source, paths.result(record.attempt, rank), size=size)
                    continue
                offset = collector.size(rank, stream)
                blocks = connection.read(source, offset)
                add_all(collector, rank, int(told["node"]), stream, offset, blocks, time.time())
    finally:
        collector.close()
    provider.forget([instance])


def _missing(
    record: TaskRecord, told: Mapping[str, Any], paths: TaskPaths
) -> dict[str, int | None]:
    """What of one node is not here, as far as that is known."""
    found = {}
    for name, size in told["files"].items():
        rank, stream = _parsed(name)
        if stream == _RESULT:
            path = paths.result(record.attempt, rank)
            here = path.exists() if size is None else Partial(path, size).whole
        else:
            path = paths.stream(record.attempt, int(told["node"]), rank, stream)
            here = path.exists() and path.stat().st_size >= (size or 0)
        if not here:
            found[name] = size
    return found


def _parsed(name: str) -> tuple[int, str]:
    rank, _, stream = name.partition(".")
    return int(rank[1:]), stream
