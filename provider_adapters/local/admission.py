"""Admission of tasks to this machine: a limit on concurrent tasks, and GPUs that serve one task at a time.

There are two ledgers: one for tasks and nodes, in `FLOW_HOME/local`, and one for GPUs, beside the sockets of this user,
since tasks of another FLOW_HOME must not get the same GPUs. Who comes first is decided by the queue
(`flowlite/supervise/queue`) before a task gets here. What a dead task still holds is reclaimed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.node.system import processes, runtime_dir
from flowlite.provider import Plan
from provider_adapters.locked_record import LockedRecord


class Admission:
    """The tasks that are admitted, or wait, in one FLOW_HOME."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._tasks = LockedRecord(home / "local" / "tasks.json")

    @functools.cached_property
    def _gpus(self) -> LockedRecord:
        try:
            return LockedRecord(Path(runtime_dir.find()) / "gpus.json")
        except OSError as error:
            raise ProviderError(str(error.strerror)) from error

    def held(self) -> dict[str, dict[str, Any]]:
        """What each task holds: instances, GPUs by instance, and the entry that `admit` was given."""
        return {task: entry for task, entry in self._tasks.read().items() if "instances" in entry}

    def admit(
        self,
        task_id: str,
        token: str,
        ids: Sequence[str],
        entry: dict[str, Any],
        plan: Plan,
        *,
        least: int,
    ) -> dict[str, Any]:
        """Gives a task nodes with their GPUs: all, or the first of them if at least `least` have GPUs, or none.

        What it already holds for the same token is unchanged.

        Raises:
            CapacityUnavailable: Too many tasks are running, or the GPUs are in use.
        """
        limit = int(plan.options.get("max_tasks", 8))
        with self._tasks.change() as tasks:
            mine = tasks.get(task_id, {})
            if token in mine.get("tokens", {}):
                return dict(mine)
            refusal = None if "instances" in mine else self._refuse_place(tasks, limit)
            gpus = {} if refusal else self._lend_gpus(tasks, task_id, ids, plan, least)
            if isinstance(gpus, CapacityUnavailable):
                refusal = gpus
            elif refusal is None:
                ids = list(gpus) or ids
                tasks[task_id] = {
                    **entry,
                    "tokens": {**mine.get("tokens", {}), token: list(ids)},
                    "instances": [*mine.get("instances", ()), *ids],
                    "gpus": {**mine.get("gpus", {}), **gpus},
                }
        if refusal is not None:
            raise refusal
        return dict(tasks[task_id])

    def give_back(self, task_id: str, ids: Sequence[str]) -> None:
        """Releases nodes and their GPUs."""
        with self._tasks.change() as tasks:
            entry = tasks.get(task_id)
            if entry is None:
                return
            gone = set(ids)
            returned = [g for i, gpus in entry.get("gpus", {}).items() if i in gone for g in gpus]
            entry["gpus"] = {i: g for i, g in entry.get("gpus", {}).items() if i not in gone}
            entry["instances"] = [i for i in entry.get("instances", ()) if i not in gone]
            if not entry["instances"]:
                del tasks[task_id]
            if returned:
                with self._gpus.change() as lent:
                    for index in returned:
                        if lent.get(str(index), {}).get("task") == task_id:
                            del lent[str(index)]

    # Tasks

    def _refuse_place(self, tasks: dict[str, Any], limit: int) -> CapacityUnavailable | None:
        """None if a task may run; otherwise the reason."""
        if _running(tasks) >= limit:
            self._take_back_stale(tasks)
        if _running(tasks) < limit:
            return None
        return CapacityUnavailable(
            f"waiting for a place: {_running(tasks)} of {limit} places for tasks on this machine are taken "
            "(setting local_tasks)",
            retry_after=0.2,
        )

    def _take_back_stale(self, tasks: dict[str, Any]) -> None:
        for task_id, entry in list(tasks.items()):
            if "instances" in entry and self._abandoned(task_id, self._home):
                del tasks[task_id]

    def _abandoned(self, task_id: str, home: Path) -> bool:
        """Whether a task has neither a supervisor nor any live process."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            last = json.loads((home / "tasks" / task_id / "supervisor.json").read_bytes())
            if processes.is_alive(int(last["pid"]), str(last["start"])):
                return False
        return not processes.marked({"FLOW_TASK_ID": task_id, "FLOW_HOME": str(home)})

    # GPUs

    def _lend_gpus(
        self, tasks: dict[str, Any], task_id: str, ids: Sequence[str], plan: Plan, least: int
    ) -> dict[str, list[int]] | CapacityUnavailable:
        each = plan.gpus_per_node
        if each == 0:
            return {}
        with self._gpus.change() as lent:
            for index, lease in list(lent.items()):
                if self._is_stale(lease, tasks):
                    del lent[index]
            free = [i for i in plan.options["gpus"] if str(i) not in lent]
            if len(free) < each * least:
                users = sorted({lease["task"] for lease in lent.values()})
                return CapacityUnavailable(
                    f"waiting for {each * least} GPUs of this machine: {len(free)} are free, the others are in "
                    f"use by {', '.join(users) or 'others'}",
                    retry_after=0.5,
                )
            chosen = {
                name: free[position * each : (position + 1) * each]
                for position, name in enumerate(ids[: len(free) // each])
            }
            for indices in chosen.values():
                for index in indices:
                    lent[str(index)] = {"task": task_id, "home": str(self._home)}
        return chosen

    def _is_stale(self, lease: dict[str, str], tasks: dict[str, Any]) -> bool:
        home, task_id = Path(lease["home"]), lease["task"]
        if home == self._home and "instances" not in tasks.get(task_id, {}):
            return True
        return self._abandoned(task_id, home)


def _running(tasks: dict[str, Any]) -> int:
    return sum("instances" in entry for entry in tasks.values())
