"""Cleans up after crashes: instances of no live task, tasks without a supervisor, directories of no task."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from flowlite.errors import StoreDamaged, StoreError
from flowlite.node.mount_namespace import unmount
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import (
    Instance,
    Provider,
    adapter_class,
    adapters_problem,
    get_provider,
    provider_names,
    settings_of_task,
)
from flowlite.provider.dollars import dollars
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.state import clock
from flowlite.state.records import FINAL_STATES
from flowlite.state.store import Store
from flowlite.supervise.cleanup.warm_nodes import end_warm_nodes, look_up_cost
from flowlite.supervise.process import standby
from flowlite.supervise.process.launch import abandoned_tasks, cancel, start_supervisor
from flowlite.supervise.process.resuming import would_launch
from flowlite.supervise.record import wording
from flowlite.supervise.record.paths import TaskPaths

# A draft is submitted within seconds. An older directory without a task was left by a client that was killed.
_DRAFT_SECONDS = 3600.0
# Younger machines that are unknown to their live task may just have been launched. Older ones are left from a
# supervisor that was killed.
_STRANGE_SECONDS = 900.0
# Machines end themselves at their deadline. Those of other FLOW_HOMEs are ended only if that has clearly failed.
_OVERDUE_SECONDS = 600.0


@dataclass(slots=True)
class Reconciled:
    """What was found and, unless it was a dry run, done.

    Attributes:
        ended: Instances of final tasks, and warm ones if requested: {"provider", "id", "task"}.
        unknown: Instances of this FLOW_HOME whose task is not in the store, and whether they were ended (if requested).
        others: Instances launched from other FLOW_HOMEs, and whether they were ended.
        supervised: Tasks without a supervisor that have machines or are about to end. They get a new supervisor.
        resumable: Tasks without a supervisor that would launch machines. Nothing was done about them.
        removed: Directories of tasks that were never submitted, and what providers had left beside instances.
        removed_of_others: The latter of other FLOW_HOMEs.
        problems: What could not be examined or ended, in words.
        incomplete: Whether some of these are a provider's: an account or region may have leftovers still.
    """

    ended: list[dict[str, str]] = field(default_factory=list)
    unknown: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    supervised: list[str] = field(default_factory=list)
    resumable: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    removed_of_others: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    incomplete: bool = False

    def note_problem(self, text: str) -> None:
        """Adds a problem of a provider, once."""
        self.incomplete = True
        if text not in self.problems:
            self.problems.append(text)

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain JSON values."""
        return asdict(self)

    def lines(self, dry_run: bool = False) -> list[str]:
        """Returns the result for people, one line each."""
        would = "would be " if dry_run else ""
        return [
            *(f"{i['provider']} {i['id']} of task {i['task']}: {would}ended" for i in self.ended),
            *(_unknown_line(each, dry_run) for each in self.unknown),
            *(_other_line(other, dry_run) for other in self.others),
            *(f"task {task}: {would}given a new supervisor" for task in self.supervised),
            *(
                f"task {task}: has no supervisor and no machines, left alone; `flow status` says how it goes on"
                for task in self.resumable
            ),
            *(
                f"{what}: {would}removed, it serves no task"
                for what in (*self.removed, *self.removed_of_others)
            ),
            *self.problems,
        ]


def reconcile(
    store: Store,
    home: Path,
    *,
    here: Callable[[str], ProviderSettings] | None = None,
    dry_run: bool = False,
    warm: bool = False,
    unknown: bool = False,
    all_homes: bool = False,
    providers: Collection[str] | None = None,
) -> Reconciled:
    """Ends instances with our tag that belong to no live task, and gives abandoned tasks with machines a supervisor.

    Nothing is launched: a task without machines is only listed, and the supervisor of one that turns out to have none
    hands it back. Two kinds of instances are also only listed, unless
    their deadline passed long ago: those launched from another FLOW_HOME, and those whose task the store does not
    know. The task of the latter may be running, while the store was lost or is an older copy.

    Every account in which anything was ever launched is examined, with the settings frozen at submission.

    Args:
        here: Returns a provider's present settings, whose account is examined too. None in a process that does not
            have the user's settings.
        dry_run: Only look.
        warm: End nodes that are kept for the next task, too.
        unknown: End instances whose task the store does not know, too.
        all_homes: End instances launched from other FLOW_HOMEs, too, whatever their deadline.
        providers: Only examine these; None for all that are set up.
    """
    found = Reconciled()
    listed: set[str] = set()
    for name in provider_names():
        if providers is None or name in providers:
            place = _ProviderCleanup(name, store, home, found, dry_run)
            place.tidy(here, unknown=unknown, all_homes=all_homes)
            listed |= place.listed
    if warm:
        ended, problems = end_warm_nodes(store, home, dry_run=dry_run)
        found.ended += [
            {"provider": row.provider, "id": row.id, "task": row.task_id} for row in ended
        ]
        for problem in problems:
            found.note_problem(problem)
        if not dry_run:
            standby.dismiss(home)
    if not dry_run:
        for problem in look_up_cost(store, home):
            found.note_problem(problem)
    for task_id in abandoned_tasks(store, home):
        try:
            waits = task_id not in listed and would_launch(store, store.get_task(task_id))
        except StoreDamaged as error:
            found.problems.append(f"{error}; its machines are left alone")
            continue
        if waits:
            found.resumable.append(task_id)
            continue
        if not dry_run:
            try:
                _supervise(store, home, task_id)
            except StoreError as error:
                found.problems.append(f"task {task_id}: {error}")
                continue
        found.supervised.append(task_id)
    _remove_drafts(store, home, found, dry_run)
    return found


def _supervise(store: Store, home: Path, task_id: str) -> None:
    """Starts the supervisor of a task that has machines, or is about to end. Raises StoreError."""
    if TaskPaths(home, task_id).directory.exists():
        start_supervisor(home, task_id, launches=False)
        return
    why = "its files on this machine were removed, so that it cannot go on; it is cancelled"
    store.add_event(task_id, "warning", why)
    cancel(store, home, task_id)


@dataclass(slots=True)
class _ProviderCleanup:
    """One provider during the cleanup.

    Attributes:
        listed: Live tasks that have machines there.
    """

    name: str
    store: Store
    home: Path
    found: Reconciled
    dry_run: bool
    listed: set[str] = field(default_factory=set)

    def tidy(
        self,
        here: Callable[[str], ProviderSettings] | None,
        *,
        unknown: bool,
        all_homes: bool,
    ) -> None:
        """Ends what has to be ended at this provider. An error in one account does not affect the others.

        Nor does a defect of an adapter: other providers may have machines that are charged.
        """
        own: ProviderSettings | None = None
        accounts: list[ProviderSettings] = []
        with self._noting_problems():
            # If this fails, the accounts of other settings are still examined.
            own = here(self.name) if here is not None else None
        with self._noting_problems():
            accounts = self._accounts(own)
        for settings in accounts:
            with self._noting_problems():
                provider = get_provider(self.home, settings)
                if settings is not own or provider.configured():
                    self._tidy_account(provider, unknown=unknown, all_homes=all_homes)

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.found.note_problem(f"{self.name}: {adapters_problem(error)}")

    def _accounts(self, here: ProviderSettings | None) -> list[ProviderSettings]:
        """Returns settings for each account that may have instances of ours, the present settings first."""
        adapter = adapter_class(self.name)
        of_here = functools.partial(self.store.list_tasks, provider=self.name)
        # The newest task stands for the account in use, or the one before it if its row is damaged. Older tasks count
        # while they may have instances.
        counting = [*(of_here(limit=1) or of_here()[:1]), *of_here(unfinished=True)]
        asked = [here] if here is not None else []
        asked += map(settings_of_task, counting)
        asked += adapter.remembered(self.home)
        found: dict[str, ProviderSettings] = {}
        for settings in asked:
            account = settings.only(adapter.account_settings).values
            found.setdefault(json.dumps(account, sort_keys=True), settings)
        return list(found.values())

    def _tidy_account(self, provider: Provider, *, unknown: bool, all_homes: bool) -> None:
        self._end_orphans(provider, unknown)
        self._end_others(provider, all_homes)
        # Read now, since a task may have been submitted meanwhile and be about to launch. Tasks with files here may be
        # live.
        live = {path.name for path in self.home.glob("tasks/*")} | self.store.task_ids()
        live |= {each["task"] for each in self.found.unknown if not each["ended"]}
        live -= {each.id for each in self.store.task_keys() if each.state in FINAL_STATES}
        self.found.removed += provider.sweep(live, dry_run=self.dry_run)
        if all_homes:
            self.found.removed_of_others += provider.sweep_others(dry_run=self.dry_run)
        for each in provider.not_looked_at():
            self.found.note_problem(f"{self.name}: not looked at: {each}")

    def _end_orphans(self, provider: Provider, unknown: bool) -> None:
        there = [each for each in provider.list_instances() if each.state not in ("ended", "warm")]
        # Read after the listing, so that a task submitted meanwhile is known.
        known = self.store.task_ids()
        records = self.store.list_tasks(ids={each.task_id for each in there})
        tasks = {record.id: record for record in records}
        strays = [each for each in there if each.task_id not in known]
        orphans = [
            each
            for each in there
            # A known task may have a damaged row, of which nothing is certain.
            if (record := tasks.get(each.task_id)) and (record.final or self._is_strange(each))
        ]
        self.listed |= {each.task_id for each in there if each not in orphans}
        given_up = [each for each in strays if unknown or _is_overdue(each)]
        ending = orphans + given_up
        if ending and not self.dry_run:
            provider.terminate(ending)
        # Two accounts in the settings may be the same one at the provider.
        for row in (self._named(each) for each in orphans):
            if row not in self.found.ended:
                self.found.ended.append(row)
        for row in ({**self._named(each), "ended": each in given_up} for each in strays):
            if row not in self.found.unknown:
                self.found.unknown.append(row)

    def _named(self, instance: Instance) -> dict[str, Any]:
        return {"provider": self.name, "id": instance.id, "task": instance.task_id}

    def _is_strange(self, instance: Instance) -> bool:
        """Whether a live task does not know this instance, and no open launch can account for it."""
        if not instance.launched_at or clock.now() - instance.launched_at < _STRANGE_SECONDS:
            return False
        known = {row.id for row in self.store.instances(instance.task_id)}
        return instance.id not in known and not self.store.has_open_launch(instance.task_id)

    def _end_others(self, provider: Provider, all_homes: bool) -> None:
        known = {each["id"] for each in self.found.others if each["provider"] == self.name}
        others = [
            each for each in provider.others() if each.state != "ended" and each.id not in known
        ]
        ending = [each for each in others if all_homes or _is_overdue(each)]
        if ending and not self.dry_run:
            provider.terminate(ending)
        for each in others:
            self.found.others.append(
                {
                    "provider": self.name,
                    "id": each.id,
                    "task": each.task_id,
                    "home": each.data.get("home"),
                    "owner": each.data.get("owner"),
                    "deadline": each.data.get("deadline"),
                    "launched_at": each.launched_at or None,
                    "price_per_hour": each.price_per_hour,
                    "price_is_a_bound": each.cost_at_most,
                    "stays": each.data.get("stays"),
                    "ended": each in ending,
                }
            )


def _is_overdue(instance: Instance) -> bool:
    deadline = instance.data.get("deadline")
    # The clock of a FLOW_HOME may differ by hours from that of the client that has set the deadline.
    return isinstance(deadline, int | float) and clock.wall() > deadline + _OVERDUE_SECONDS


def _unknown_line(each: Mapping[str, Any], dry_run: bool) -> str:
    what = "left alone; `flow store restore` finds the task again, `flow gc --yes` ends this"
    if each["ended"]:
        what = "would be ended" if dry_run else "ended"
    return f"{each['provider']} {each['id']} of task {each['task']}, which the store does not know: {what}"


def _other_line(other: Mapping[str, Any], dry_run: bool) -> str:
    """Returns a line about one machine of another FLOW_HOME."""
    now, deadline = clock.wall(), other["deadline"]
    age = f"{wording.duration(now - other['launched_at'])} old" if other["launched_at"] else ""
    most = "at most " if other["price_is_a_bound"] else ""
    price = f"{most}{dollars(other['price_per_hour'])} per hour" if other["price_per_hour"] else ""
    if deadline is None:
        until = "without a deadline"
    elif deadline > now and other["stays"]:
        until = (
            f"powers off by itself in {wording.duration(deadline - now)}, but {other['stays']} may stay and cost more "
            "until somebody ends it"
        )
    elif deadline > now:
        until = f"ends by itself in {wording.duration(deadline - now)}"
    else:
        until = f"should have ended {wording.duration(now - deadline)} ago"
    about = ", ".join(filter(None, (age, price, until)))
    what = "left alone, `flow gc --all-homes` ends it"
    if other["ended"]:
        what = "would be ended" if dry_run else "ended"
    whose = f"of {other['owner'] or 'somebody'}, from another FLOW_HOME"
    return f"{other['provider']} {other['id']} {whose} ({about}): {what}"


def _remove_drafts(store: Store, home: Path, found: Reconciled, dry_run: bool) -> None:
    tasks = home / "tasks"
    if not tasks.is_dir():
        return
    known = store.task_ids()
    for directory in sorted(tasks.iterdir()):
        try:
            age = clock.age_of(directory, home)
        except OSError:
            continue
        # A directory with a configuration was submitted, even if the store has lost the task.
        submitted = (directory / "config.json").exists()
        if directory.name not in known and not submitted and age > _DRAFT_SECONDS:
            found.removed.append(str(directory))
            # What is still mounted there must not be deleted.
            if not dry_run and not unmount.unmount_below(directory):
                shutil.rmtree(directory, ignore_errors=True)
