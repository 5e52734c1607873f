"""Getting nodes and giving them back. No call that can cost money is made before its intent is durable."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.node import roster as ranks
from flowlite.provider import Instance, LaunchIntent, Provider
from flowlite.store import InstanceRecord, Lease, Store, TaskRecord
from flowlite.supervise.asked import Asked

# A launch whose outcome is not known is asked for again, by the same token, so often.
_UNKNOWN_TRIES = 5
_LOST = "lost"
_ENDED = "ended"


class LaunchRefused(Exception):
    """The provider will not give the nodes; the text is for people."""


class Provisioner:
    """The instances of one task."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        provider: Provider,
        asked: Asked,
        thread: Callable[..., Awaitable[Any]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._store = store
        self._lease = lease
        self._provider = provider
        self._asked = asked
        self._thread = thread
        self._sleep = sleep

    def listed(self) -> list[Instance]:
        """What the provider says exists of this task."""
        found = self._provider.list_instances(self._lease.task_id)
        return [instance for instance in found if instance.state != _ENDED]

    async def complete(
        self,
        record: TaskRecord,
        agent: Path,
        tell_waiting: Callable[[str], None],
        given_up: Callable[[], bool],
    ) -> tuple[list[str] | None, list[Instance]]:
        """Gets as many nodes as the gang lacks, and gives the roster with its instances.

        Nodes that were set aside or are gone are replaced; a replacement takes the rank of the one it replaces.

        Returns:
            The roster is None if it was given up while waiting.

        Raises:
            LaunchRefused: The provider will not give them.
        """
        kept: dict[str, Instance] = {}
        if record.roster:
            kept = await self._usable(record.roster)
        vacant = [name for name in record.roster if name not in kept]
        count = len(vacant) if record.roster else self._asked.nodes
        launched = await self._launch(record, count, agent, tell_waiting, given_up) if count else []
        if launched is None:
            return None, []
        roster = _fill(record.roster, vacant, [instance.id for instance in launched])
        found = {**kept, **{instance.id: instance for instance in launched}}
        instances = [found[name] for name in roster]
        self._remember(instances)
        return roster, instances

    def set_aside(self, ids: Collection[str]) -> None:
        """These instances must not be used again."""
        if not ids:
            return
        stored = {record.id: record for record in self._store.instances(self._lease.task_id)}
        lost = [dataclasses.replace(stored[name], state=_LOST) for name in ids if name in stored]
        self._store.put_instances(self._lease, lost)

    async def end_all(self) -> str:
        """Ends every instance of the task. "" once the provider lists none, else what is in the way."""
        stored = self._store.instances(self._lease.task_id)
        if not stored and not self._store.intents(self._lease.task_id):
            return ""
        try:
            listed = await self._thread(self.listed)
            known = {i.id: Instance.from_json(i.data) for i in stored if i.ended_at is None}
            known |= {instance.id: instance for instance in listed}
            if known:
                await self._thread(self._provider.terminate, list(known.values()))
                listed = await self._thread(self.listed)
        except (ProviderError, OSError) as error:
            return str(error) or type(error).__name__
        if listed:
            return f"{', '.join(instance.id for instance in listed[:5])} still exist"
        self._mark_ended(stored)
        return ""

    # Inside

    async def _usable(self, roster: Iterable[str]) -> dict[str, Instance]:
        """Those of the roster that exist and were not set aside. What was set aside is ended first."""
        listed = {instance.id: instance for instance in await self._thread(self.listed)}
        stored = self._store.instances(self._lease.task_id)
        lost = {record.id for record in stored if record.state == _LOST}
        if ending := [listed[name] for name in lost if name in listed]:
            await self._thread(self._provider.terminate, ending)
        gone = [r for r in stored if r.ended_at is None and (r.id in lost or r.id not in listed)]
        self._mark_ended(gone)
        return {name: listed[name] for name in roster if name in listed and name not in lost}

    async def _launch(
        self,
        record: TaskRecord,
        count: int,
        agent: Path,
        tell_waiting: Callable[[str], None],
        given_up: Callable[[], bool],
    ) -> list[Instance] | None:
        intent = self._intend(record, count, agent)
        tries = 0
        while True:
            try:
                instances: list[Instance] = await self._thread(self._provider.launch, intent)
                break
            except CapacityUnavailable as error:
                tell_waiting(str(error))
                await self._sleep(error.retry_after)
            except ProviderError as error:
                self._store.settle_intent(self._lease, intent.token, "refused")
                raise LaunchRefused(f"{self._provider.name} refused the launch: {error}") from error
            except OSError as error:
                tries += 1
                if tries >= _UNKNOWN_TRIES:
                    raise LaunchRefused(f"{self._provider.name}: launch failed: {error}") from error
                await self._sleep(2.0**tries)
            if given_up():
                return None
        self._store.settle_intent(self._lease, intent.token, "done")
        return instances

    def _intend(self, record: TaskRecord, count: int, agent: Path) -> LaunchIntent:
        """Writes down the intent; one that was left open by a supervisor that was killed is taken up again."""
        intents = self._store.intents(record.id)
        preload = {
            "agent": str(agent),
            "call": self._asked.call,
            "environment": self._asked.environment,
            "processes_per_node": self._asked.workers_per_node,
        }
        for intent in intents:
            if intent.state == "open":
                return dataclasses.replace(LaunchIntent.from_json(intent.data), preload=preload)
        fresh = LaunchIntent(
            token=f"{record.id}-launch-{len(intents) + 1}",
            task_id=record.id,
            count=count,
            plan=record.plan,
        )
        self._store.put_intent(self._lease, fresh.token, "launch", fresh.to_json())
        return dataclasses.replace(fresh, preload=preload)

    def _remember(self, instances: list[Instance]) -> None:
        price = self._asked.plan.price_per_hour
        known = {record.id: record for record in self._store.instances(self._lease.task_id)}
        records = []
        for rank, instance in enumerate(instances):
            before = known.get(instance.id)
            launched = instance.launched_at or (before.launched_at if before else time.time())
            records.append(
                InstanceRecord(
                    id=instance.id,
                    task_id=instance.task_id,
                    provider=self._provider.name,
                    state=instance.state,
                    price_per_hour=instance.price_per_hour or price,
                    launched_at=launched,
                    data=instance.to_json(),
                    node_rank=rank,
                )
            )
        self._store.put_instances(self._lease, records)

    def _mark_ended(self, records: list[InstanceRecord]) -> None:
        now = time.time()
        ended = [
            dataclasses.replace(
                record, state=_LOST if record.state == _LOST else _ENDED, ended_at=now
            )
            for record in records
            if record.ended_at is None
        ]
        if ended:
            self._store.put_instances(self._lease, ended)


def _fill(roster: list[str], vacant: list[str], new: list[str]) -> list[str]:
    if not roster:
        return ranks.assign_ranks(new)
    filled = roster
    for old, name in zip(vacant, sorted(new), strict=True):
        filled = ranks.replace(filled, old, name)
    return filled
