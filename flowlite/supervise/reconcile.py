"""Setting right what crashes have left: instances of no live task, tasks without supervisor, directories of no task."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowlite.errors import FlowError
from flowlite.node import staging
from flowlite.provider import Instance, get_provider, provider_names
from flowlite.store import Store
from flowlite.supervise import spare
from flowlite.supervise.keeping import end_warm_nodes
from flowlite.supervise.start import abandoned_tasks, start_supervisor

# A draft is submitted within seconds; a directory of no task that is older was left by a client that was killed.
_DRAFT_SECONDS = 3600.0


@dataclass(slots=True)
class Reconciled:
    """What was found and, unless it was only looked for, set right.

    Attributes:
        ended: Instances of tasks that are final or unknown, and warm ones if asked: {"provider", "id", "task"}.
        supervised: Tasks that had lost their supervisor.
        removed: Directories of tasks that were never submitted.
        problems: What could not be looked at or ended, in words.
    """

    ended: list[dict[str, str]] = field(default_factory=list)
    supervised: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return asdict(self)

    def lines(self, dry_run: bool = False) -> list[str]:
        """For people, one line each."""
        would = "would be " if dry_run else ""
        return [
            *(f"{i['provider']} {i['id']} of task {i['task']}: {would}ended" for i in self.ended),
            *(f"task {task}: {would}given a new supervisor" for task in self.supervised),
            *(f"{directory}: {would}removed, it was never submitted" for directory in self.removed),
            *self.problems,
        ]


def reconcile(store: Store, home: Path, *, dry_run: bool = False, warm: bool = False) -> Reconciled:
    """Ends what bears our tag and belongs to no live task, and gives abandoned tasks a supervisor.

    Args:
        dry_run: Only look.
        warm: End nodes that are kept for the next task, too.
    """
    found = Reconciled()
    live = {record.id for record in store.list_tasks(unfinished=True)}
    for name in provider_names():
        _end_orphans(name, live, found, dry_run)
    if warm:
        ended, problems = end_warm_nodes(store, dry_run=dry_run)
        found.ended += [
            {"provider": row.provider, "id": row.id, "task": row.task_id} for row in ended
        ]
        found.problems += problems
        if not dry_run:
            spare.dismiss(home)
    for task_id in abandoned_tasks(store, home):
        found.supervised.append(task_id)
        if not dry_run:
            start_supervisor(home, task_id)
    _remove_drafts(store, home, found, dry_run)
    return found


def _end_orphans(name: str, live: set[str], found: Reconciled, dry_run: bool) -> None:
    try:
        provider = get_provider(name)
        orphans = [
            instance
            for instance in provider.list_instances()
            if instance.state not in ("ended", "warm") and instance.task_id not in live
        ]
        if orphans and not dry_run:
            provider.terminate(orphans)
    except (FlowError, ImportError, OSError) as error:
        found.problems.append(f"{name}: {error}")
        return
    found.ended += [_shown(name, instance) for instance in orphans]


def _shown(provider: str, instance: Instance) -> dict[str, str]:
    return {"provider": provider, "id": instance.id, "task": instance.task_id}


def _remove_drafts(store: Store, home: Path, found: Reconciled, dry_run: bool) -> None:
    tasks = home / "tasks"
    if not tasks.is_dir():
        return
    known = {record.id for record in store.list_tasks()}
    for directory in sorted(tasks.iterdir()):
        try:
            age = time.time() - directory.stat().st_mtime
        except OSError:
            continue
        if directory.name not in known and age > _DRAFT_SECONDS:
            found.removed.append(str(directory))
            # What is still mounted there is not ours to delete.
            if not dry_run and not staging.unmount_below(directory):
                shutil.rmtree(directory, ignore_errors=True)
