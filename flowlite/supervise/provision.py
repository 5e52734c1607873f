"""Getting nodes and giving them back. No call that can cost money is made before its intent is durable."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.node import roster as ranks
from flowlite.provider import Instance, LaunchIntent, Provider
from flowlite.store import InstanceRecord, Lease, Store, TaskRecord
from flowlite.supervise.asked import Asked
from flowlite.supervise.crew import Crew

# A launch whose outcome is not known is asked for again, by the same token, so often.
_UNKNOWN_TRIES = 5
_LOST = "lost"
_ENDED = "ended"
_UNREACHABLE = "unreachable"
_WARM = "warm"


class LaunchRefused(Exception):
    """The provider will not give the nodes; the text is for people."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """All nodes of an attempt, by rank, with what has to be written down about them in one go."""

    roster: list[str]
    instances: list[Instance]
    records: list[InstanceRecord]
    settled: dict[str, str]


class Provisioner:
    """The instances of one task."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        provider: Provider,
        asked: Asked,
        crew: Crew,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._store = store
        self._lease = lease
        self._provider = provider
        self._asked = asked
        self._crew = crew
        self._sleep = sleep

    def listed(self) -> list[Instance]:
        """What the provider says exists of this task; what is kept for the next one is nobody's."""
        found = self._provider.list_instances(self._lease.task_id)
        there = [instance for instance in found if instance.state not in (_ENDED, _WARM)]
        # One that does not answer just now exists all the same; only those that were found lost are given up.
        return [
            dataclasses.replace(each, state="running") if each.state == _UNREACHABLE else each
            for each in there
        ]

    async def complete(
        self,
        record: TaskRecord,
        agent: Path,
        tell_waiting: Callable[[str], None],
        given_up: Callable[[], bool],
    ) -> Gathered | None:
        """Gets as many nodes as the gang lacks. Nothing of it is in the store yet, except the intents.

        Nodes that were set aside or are gone are replaced; a replacement takes the rank of the one it replaces.

        Returns:
            None if it was given up while waiting.

        Raises:
            LaunchRefused: The provider will not give them.
        """
        kept = await self._usable(record.roster) if record.roster else {}
        vacant = [name for name in record.roster if name not in kept]
        count = len(vacant) if record.roster else self._asked.nodes
        launched: list[Instance] = []
        tokens: list[str] = []
        while len(launched) < count:
            intent = self._intend(record, count - len(launched), agent, len(tokens))
            found = await self._launch(intent, tell_waiting, given_up)
            if found is None:
                return None
            launched += found
            tokens.append(intent.token)
        if surplus := launched[count:]:
            # An intent of before, left open by a supervisor that was killed, may have been for more.
            await self._crew.run(self._provider.terminate, surplus)
        # What they had been kept for has come; from here on they are charged to this task.
        self._store.end_warm([each.continues for each in launched if each.continues], time.time())
        roster = _fill(record.roster, vacant, [instance.id for instance in launched[:count]])
        by_id = {**kept, **{instance.id: instance for instance in launched}}
        instances = [by_id[name] for name in roster]
        settled = dict.fromkeys(tokens, "done")
        return Gathered(roster, instances, self._records(instances), settled)

    def set_aside(self, ids: Collection[str], out_of_reach: Collection[str]) -> None:
        """These instances must not be used again; those of them that are out of reach are not even asked to end."""
        if not ids:
            return
        stored = {record.id: record for record in self._store.instances(self._lease.task_id)}
        lost = []
        for record in (stored[name] for name in ids if name in stored):
            state = _UNREACHABLE if record.id in out_of_reach else "running"
            data = {**record.data, "state": state}
            lost.append(dataclasses.replace(record, state=_LOST, data=data))
        self._store.put_instances(self._lease, lost)

    async def end_all(self, warm_seconds: float = 0.0) -> list[InstanceRecord]:
        """Ends every instance of the task; returns those that now have an end, once the provider lists none.

        Args:
            warm_seconds: How long to keep those that are sound for the next task; their end is then that far away.

        Raises:
            ProviderError: Some still exist; to be tried again.
        """
        stored = self._store.instances(self._lease.task_id)
        if not stored and not self._store.intents(self._lease.task_id):
            return []
        await self._leave(stored)
        known = {i.id: Instance.from_json(i.data) for i in stored if i.ended_at is None}
        known |= {instance.id: instance for instance in await self._crew.run(self.listed)}
        lost = {record.id for record in stored if record.state == _LOST}
        sound = [instance for name, instance in known.items() if name not in lost]
        warm = await self._keep(sound, warm_seconds) if warm_seconds > 0 and sound else {}
        if ending := [instance for name, instance in known.items() if name not in warm]:
            await self._crew.run(self._provider.terminate, ending)
        if known and (left := await self._crew.run(self.listed)):
            raise ProviderError(f"{', '.join(i.id for i in left[:5])} still exist")
        kept = [dataclasses.replace(r, state=_WARM, **warm[r.id]) for r in stored if r.id in warm]
        return kept + _ended(record for record in stored if record.id not in warm)

    # Inside

    async def _keep(self, instances: list[Instance], seconds: float) -> dict[str, dict[str, Any]]:
        """Has the provider keep these; gives, by id, what the store has to say of those that are kept.

        Written down before it is done: they may cost money all that time.
        """
        until = time.time() + seconds
        token = f"{self._lease.task_id}-keep"
        names = [instance.id for instance in instances]
        self._store.put_intent(self._lease, token, "keep", {"instances": names, "until": until})
        kept = await self._crew.run(self._provider.keep, instances, seconds)
        self._store.settle_intent(self._lease, token, "done" if kept else "refused")
        return {each.id: {"data": each.to_json(), "ended_at": until} for each in kept}

    async def _leave(self, stored: Iterable[InstanceRecord]) -> None:
        """Gives up what is out of reach, so that nobody waits for its answer again."""
        open_records = (r for r in stored if r.state == _LOST and r.ended_at is None)
        instances = [Instance.from_json(record.data) for record in open_records]
        if silent := [each for each in instances if each.state == _UNREACHABLE]:
            await self._crew.run(self._provider.terminate, silent)

    async def _usable(self, roster: Iterable[str]) -> dict[str, Instance]:
        """Those of the roster that exist and were not set aside. What was set aside is ended first."""
        stored = self._store.instances(self._lease.task_id)
        await self._leave(stored)
        listed = {instance.id: instance for instance in await self._crew.run(self.listed)}
        lost = {record.id for record in stored if record.state == _LOST}
        if ending := [listed[name] for name in lost if name in listed]:
            # Its workers may live on; the next attempt must not meet them.
            await self._crew.run(self._provider.terminate, ending)
            listed = {instance.id: instance for instance in await self._crew.run(self.listed)}
            if left := sorted(lost & set(listed)):
                raise ProviderError(f"{', '.join(left)}, to be replaced, still exist")
        gone = _ended([r for r in stored if r.id in lost or r.id not in listed])
        self._store.put_instances(self._lease, gone)
        return {name: listed[name] for name in roster if name in listed and name not in lost}

    async def _launch(
        self,
        intent: LaunchIntent,
        tell_waiting: Callable[[str], None],
        given_up: Callable[[], bool],
    ) -> list[Instance] | None:
        tries = 0
        while True:
            try:
                found: list[Instance] = await self._crew.run(self._provider.launch, intent)
                return found
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

    def _intend(self, record: TaskRecord, count: int, agent: Path, skip: int) -> LaunchIntent:
        """Writes down the intent; one that was left open by a supervisor that was killed is taken up again.

        `skip` open intents are being fulfilled already.
        """
        intents = self._store.intents(record.id)
        preload = {
            "agent": str(agent),
            "call": self._asked.call,
            "environment": self._asked.environment,
            "processes_per_node": self._asked.workers_per_node,
            "secrets": self._asked.secrets,
            "warm_seconds": self._asked.warm_seconds,
        }
        launches = [intent for intent in intents if intent.kind == "launch"]
        left_open = [intent for intent in launches if intent.state == "open"][skip:]
        if left_open:
            return dataclasses.replace(LaunchIntent.from_json(left_open[0].data), preload=preload)
        fresh = LaunchIntent(
            token=f"{record.id}-launch-{len(launches) + 1}",
            task_id=record.id,
            count=count,
            plan=record.plan,
        )
        self._store.put_intent(self._lease, fresh.token, "launch", fresh.to_json())
        return dataclasses.replace(fresh, preload=preload)

    def _records(self, instances: list[Instance]) -> list[InstanceRecord]:
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
        return records


def _ended(records: Iterable[InstanceRecord]) -> list[InstanceRecord]:
    """Those that had no end yet, with one."""
    now = time.time()
    return [
        dataclasses.replace(r, state=_LOST if r.state == _LOST else _ENDED, ended_at=now)
        for r in records
        if r.ended_at is None
    ]


def _fill(roster: list[str], vacant: list[str], new: list[str]) -> list[str]:
    if not roster:
        return ranks.assign_ranks(new)
    filled = roster
    for old, name in zip(vacant, sorted(new), strict=True):
        filled = ranks.replace(filled, old, name)
    return filled
