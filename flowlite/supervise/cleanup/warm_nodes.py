"""Nodes kept warm between tasks: lists them, asks what they have cost, and ends them early."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from flowlite.errors import FlowError
from flowlite.provider import Instance, Plan, provider_of_task
from flowlite.state import clock
from flowlite.state.store import InstanceRecord, Store
from flowlite.supervise.money.billing import Billing


def warm_nodes(store: Store, home: Path) -> list[InstanceRecord]:
    """Returns the nodes that are kept warm now. `ended_at` is when they end by themselves.

    Nodes that their provider knows to be gone are marked as ended, since they cost nothing any more.
    """
    found: list[InstanceRecord] = []
    for task, rows in _by_task(store.warm_instances(clock.now())).items():
        try:
            provider = provider_of_task(store.get_task(task), home)
            there = {i.id for i in provider.still_warm(_instances(rows))}
        except (FlowError, ImportError, OSError):
            # Without an answer, the nodes count as kept.
            there = {row.id for row in rows}
        store.end_warm([row.id for row in rows if row.id not in there], clock.now())
        found += [row for row in rows if row.id in there]
    return found


def look_up_cost(store: Store, home: Path, tasks: Collection[str] | None = None) -> list[str]:
    """Records what kept nodes have cost, where only a bound is known and their provider can say more.

    Args:
        tasks: Only those of these tasks; None for all.

    Returns:
        The problems in words. The bounds stay then.
    """
    problems: list[str] = []
    for task, rows in _by_task(store.kept_at_most(tasks)).items():
        try:
            record = store.get_task(task)
            accounts = Billing(record.provider, Plan.from_json(record.plan).price_per_hour)
            accounts.note(provider_of_task(record, home).list_instances(task))
        except (FlowError, ImportError, OSError) as error:
            problem = f"{rows[0].provider}: what kept machines have cost cannot be asked: {error}"
            problems += [problem] if problem not in problems else []
            continue
        known = [row.id for row in store.instances(task)]
        # What the machines' place in the gang has cost after they were taken away.
        others = [accounts.looked_up(row) for row in accounts.unknown(known)]
        store.put_kept([*(accounts.looked_up(row) for row in rows), *others])
    return problems


def end_warm_nodes(
    store: Store,
    home: Path,
    *,
    dry_run: bool = False,
    pool: str | None = None,
    tasks: Collection[str] | None = None,
) -> tuple[list[InstanceRecord], list[str]]:
    """Ends warm nodes now.

    Args:
        dry_run: End nothing.
        pool: Only those of this sweep.
        tasks: Only those of these tasks.

    Returns:
        Those that were ended, and the problems in words.
    """
    ended: list[InstanceRecord] = []
    problems: list[str] = []
    for task, rows in _by_task(warm_nodes(store, home)).items():
        if pool not in (None, store.get_task(task).plan.get("options", {}).get("pool")):
            continue
        if tasks is not None and task not in tasks:
            continue
        try:
            if not dry_run:
                provider_of_task(store.get_task(task), home).terminate(_instances(rows))
                store.end_warm([row.id for row in rows], clock.now())
            ended += rows
        except (FlowError, ImportError, OSError) as error:
            problems.append(f"{rows[0].provider}: {error}")
    return ended, problems


def _by_task(rows: Sequence[InstanceRecord]) -> dict[str, list[InstanceRecord]]:
    """Groups rows by task, whose settings are needed to reach the instances."""
    found: dict[str, list[InstanceRecord]] = {}
    for row in rows:
        found.setdefault(row.task_id, []).append(row)
    return found


def _instances(rows: Sequence[InstanceRecord]) -> list[Instance]:
    return [Instance.from_json(row.data) for row in rows]
