"""Nodes that are kept warm between tasks: which there are, and how they are ended before their time."""

from __future__ import annotations

from collections.abc import Sequence

from flowlite import clock
from flowlite.errors import FlowError
from flowlite.provider import Instance, get_provider
from flowlite.store import InstanceRecord, Store


def warm_nodes(store: Store) -> list[InstanceRecord]:
    """Nodes that are kept now, as far as can be told at once; `ended_at` is when they end by themselves.

    What its provider knows to be gone is noted as ended: it costs nothing any more.
    """
    found: list[InstanceRecord] = []
    for name, rows in _by_provider(store.warm_instances(clock.now())).items():
        try:
            there = {i.id for i in get_provider(name).still_warm(_instances(rows))}
        except (FlowError, ImportError, OSError):
            # Nobody can say that they are gone.
            there = {row.id for row in rows}
        store.end_warm([row.id for row in rows if row.id not in there], clock.now())
        found += [row for row in rows if row.id in there]
    return found


def end_warm_nodes(
    store: Store, *, dry_run: bool = False
) -> tuple[list[InstanceRecord], list[str]]:
    """Ends all of them now; gives those that were ended, and what went wrong, in words."""
    ended: list[InstanceRecord] = []
    problems: list[str] = []
    for name, rows in _by_provider(warm_nodes(store)).items():
        try:
            if not dry_run:
                get_provider(name).terminate(_instances(rows))
                store.end_warm([row.id for row in rows], clock.now())
            ended += rows
        except (FlowError, ImportError, OSError) as error:
            problems.append(f"{name}: {error}")
    return ended, problems


def _by_provider(rows: Sequence[InstanceRecord]) -> dict[str, list[InstanceRecord]]:
    found: dict[str, list[InstanceRecord]] = {}
    for row in rows:
        found.setdefault(row.provider, []).append(row)
    return found


def _instances(rows: Sequence[InstanceRecord]) -> list[Instance]:
    return [Instance.from_json(row.data) for row in rows]
