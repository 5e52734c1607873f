"""Launches the nodes of a task and gives them back. Every intent is durable before a call that can cost money."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from flowlite.errors import (
    CapacityUnavailable,
    CapExceeded,
    ConfigError,
    FlowError,
    LeaseLost,
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
    StoreError,
)
from flowlite.node.config import ranks
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Provider
from flowlite.provider.dollars import dollars
from flowlite.state import clock
from flowlite.state.store import InstanceRecord, Intent, Lease, Store, TaskRecord
from flowlite.supervise import failover
from flowlite.supervise.failover import Kind, PlaceFailed
from flowlite.supervise.gang_size import LackingNodes
from flowlite.supervise.money.billing import ENDED, LOST, WARM, Billing
from flowlite.supervise.money.caps import Caps
from flowlite.supervise.queue.turn import Turn
from flowlite.supervise.record import lifecycle, wording
from flowlite.supervise.record.lifecycle import JOINING, SPARE
from flowlite.supervise.record.log import say
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads

# How often a launch whose outcome is unknown is requested again, with the same token.
_UNKNOWN_TRIES = 5
# Machines are charged while they boot. Seconds until they are first looked at, and between two looks after that.
_FIRST_LOOK, _LOOK_EVERY = 20.0, 60.0
# Seconds between two requests for prices that may change.
_PRICES_EVERY = 60.0
# How many intents of launches that came to nothing a task keeps.
_MOST_VAIN = 50
_SHORTEST_NAP = 0.2
# Seconds for which a provider may still count ended machines against a quota, and the longest pause between two tries.
_COUNTED_SECONDS = 600.0
_LONGEST_QUOTA_PAUSE = 30.0
# Seconds until nodes that a gang does not need are asked for again, and until it is looked whether they have gone.
_ASK_AGAIN = 1.0
_UNREACHABLE = "unreachable"
_ENDING = "ending"
_RETURNING = "returning"
_GIVEN_BACK = "given back"


class LaunchRefused(Exception):
    """The provider refuses to launch the nodes. The text is for people.

    Attributes:
        again: Whether another launch may succeed.
    """

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


class NotGone(ProviderError):
    """Instances that were asked to end are still listed."""


@dataclass(frozen=True, slots=True)
class GangNodes:
    """All nodes of an attempt by rank, and what must be recorded about them in one transaction.

    Attributes:
        roster: Instance ids by rank.
        instances: The instances by rank.
        records: Their rows for the store.
        settled: New states of the launch intents, by token.
        launched: Instances that are new in this attempt.
        joined: Ids of those for which the gang was asked to stop, so that it grows.
    """

    roster: list[str]
    instances: list[Instance]
    records: list[InstanceRecord]
    settled: dict[str, str]
    launched: list[Instance]
    joined: list[str]


class Provisioner:
    """Launches and ends the instances of one task."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        provider: Provider,
        asked: TaskView,
        threads: Threads,
        turn: Turn,
    ) -> None:
        self._store = store
        self._lease = lease
        self._provider = provider
        self._asked = asked
        self._threads = threads
        self._turn = turn
        self._sleep = turn.sleep
        self._tell_waiting = turn.tell_waiting
        self._given_up = turn.given_up
        self._limits = Caps(asked.plan)
        self._look_at = 0.0
        self._accounts = Billing(provider.name, asked.plan.price_per_hour, self._asked_at)

    def listed(self) -> list[Instance]:
        """Returns the task's instances that exist, without those kept warm for the next task."""
        found = self._provider.list_instances(self._lease.task_id)
        self._accounts.note(found)
        there = [instance for instance in found if instance.state not in (ENDED, WARM)]
        # An instance that does not answer now still exists. Only those found to be lost are given up.
        return [
            dataclasses.replace(each, state="running") if each.state == _UNREACHABLE else each
            for each in there
        ]

    async def complete(self, record: TaskRecord, agent: Path) -> GangNodes | None:
        """Launches as many nodes as the gang lacks. Only the intents are in the store when it returns.

        Nodes that were set aside or are gone are replaced. A replacement takes the rank of the node it replaces. A gang
        that may have fewer nodes than the plan begins without those for which there is no room in time.

        Args:
            agent: The agent's zipapp on this machine.

        Returns:
            None if it was given up while waiting.

        Raises:
            LaunchRefused: The provider refuses the launch, or the task has waited for too long.
            PlaceFailed: The task has other places, and this one has no room.
        """
        seen_before = record.roster or self._rows()
        spares, joining = list(self.spares()), list(self.joining())
        kept = await self.usable([*record.roster, *spares, *joining]) if seen_before else {}
        spares = [name for name in spares if name in kept]
        joining = [name for name in joining if name in kept]
        vacant = [name for name in record.roster if name not in kept]
        waits_since = clock.now()
        self._look_at = clock.monotonic() + _FIRST_LOOK
        had_asked = bool(self._open_launches(JOINING))
        ending = await self._end_growing(record, kept, agent)
        if ending is None:
            return None
        began, late = ending
        # Machines with which the gang was to grow have no other use. Spares have.
        empty = max(0, len(vacant) - len(joining) - len(late))
        taken, left = spares[:empty], spares[empty:]
        present = len(record.roster) - len(vacant) + len(taken) + len(joining) + len(late)
        lacking = LackingNodes.of(self._asked, len(record.roster), present)
        if had_asked and not vacant:
            # What there may be more was asked for a moment ago, and nothing is waited for.
            lacking = lacking._replace(most=0)
        if lacking.needed:
            await self._check_free()
        # A launch that is open had its turn.
        had_turn = not lacking.needed or self.is_launching()
        asked_at = clock.now()
        until = math.inf if had_turn else self._wait_ends(record, asked_at)
        if not had_turn:
            preparing = asyncio.ensure_future(self._threads.run(self._provider.prepare_to_launch))
            if not await self._turn.to_launch(until):
                if self._given_up():
                    return None
                raise self._not_its_turn(record, lacking.needed, asked_at)
            await preparing
        self._look_at = clock.monotonic() + _FIRST_LOOK
        there = {*kept, *(each.id for each in late)}
        gathered = await self._gather(record, lacking, there, began, agent)
        if gathered is None:
            return None
        tokens, launched = gathered
        # Nodes that are kept may have ended while it was waited for others.
        if kept and clock.now() - waits_since >= _FIRST_LOOK:
            still = await self.usable([*kept])
            if len(still) < len(kept):
                return await self.complete(record, agent)
        if surplus := launched[lacking.most :]:
            # The open intent of a supervisor that was killed may have been for more nodes.
            await self._end(surplus)
            launched = launched[: lacking.most]
        launched = [*late, *launched]
        # The instances kept warm have been reused, and are charged to this task from here on.
        self._store.end_warm([each.continues for each in launched if each.continues], clock.now())
        new = [*taken, *joining, *(instance.id for instance in launched)]
        if not record.roster:
            new, left = ranks.split_spares(new, len(new) - self._asked.plan.spares)
        roster = ranks.succeed(record.roster, vacant, new)
        by_id = {**kept, **{instance.id: instance for instance in launched}}
        instances = [by_id[name] for name in roster]
        settled = dict.fromkeys([*began, *tokens], "done")
        records = self._records(instances)
        records += self._rows_without_rank([by_id[name] for name in left], SPARE)
        records += await self._vanished(by_id)
        return GangNodes(roster, instances, records, settled, launched, joining)

    def is_launching(self) -> bool:
        """Whether a launch is open that an attempt needs, or for its spares."""
        return bool(set(self._open_launches()) - set(self._open_launches(JOINING)))

    def spares(self) -> dict[str, Instance]:
        """Returns the task's spare machines, by id, as they are in the store."""
        return self._in_state(SPARE)

    def joining(self) -> dict[str, Instance]:
        """Returns the machines with which the gang is to grow, by id, as they are in the store."""
        return self._in_state(JOINING)

    def _in_state(self, state: str) -> dict[str, Instance]:
        rows = self._rows()
        mine = (row for row in rows if row.state == state and row.ended_at is None)
        return {row.id: Instance.from_json(row.data) for row in mine}

    async def launch_joining(
        self, record: TaskRecord, count: int, agent: Path
    ) -> tuple[list[InstanceRecord], dict[str, str]]:
        """Asks once for nodes with which a gang may grow while it runs.

        Returns:
            Their rows, and the new state of the launch intent, both for the store.

        Raises:
            LaunchPending: The launch is under way; call it again.
            CapacityUnavailable: There is no room, or others are before it in the queue.
            ProviderError: The provider refuses, or cannot be asked.
            LaunchRefused: The provider would charge what the plan does not say.
        """
        if (room := self._turn.nodes_to_add()) is not None and room <= 0:
            raise CapacityUnavailable("no place is free, or others are before it in the queue")
        await self._check_free()
        intent = self._intend(record, count, 1, agent, purpose=JOINING)
        if room is not None:
            intent = dataclasses.replace(intent, count=min(intent.count, room))
        return await self._launch_without_rank(intent, JOINING)

    async def _launch_without_rank(
        self, intent: LaunchIntent, state: str
    ) -> tuple[list[InstanceRecord], dict[str, str]]:
        """Asks once. Returns the rows of the machines, in that state, and the new state of the intent."""
        try:
            found = await self._threads.run(self._provider.launch, intent)
        except LaunchPending:
            raise
        except (ProviderError, ConfigError, CapExceeded):
            self._store.settle_intent(self._lease, intent.token, "refused")
            raise
        self._accounts.note(found)
        await self._refuse_charged(intent, found)
        return self._rows_without_rank(found, state), {intent.token: "done"}

    def is_joining(self) -> bool:
        """Whether a launch is open for nodes with which a gang is to grow."""
        return bool(self._open_launches(JOINING))

    async def withdraw_joining(self, roster: Collection[str]) -> bool:
        """Ends the launch that is open so that a gang grows, and what it may still bring.

        Returns:
            Whether that is done. Otherwise the call should be repeated.
        """
        tokens = self._open_launches(JOINING)
        # What is lost or returns is of an earlier launch, whether or not that is known.
        kept = {*roster, *self.spares(), *self.joining(), *self._in_state(LOST)}

        def may_be_of_it(each: Instance) -> bool:
            stays = each.id in kept or each.state == _RETURNING
            return each.launch in ("", *tokens) and not stays

        return await self._withdraw(tokens, may_be_of_it)

    async def end_left_over(self, roster: Collection[str]) -> bool:
        """Ends what belongs to no open launch and has no row, while an attempt runs.

        Returns:
            Whether nothing of it is there any more. Otherwise the call should be repeated.
        """
        listed = await self._listed()
        over = [listed[name] for name in self._left_over(listed, roster)]
        if charged := [each for each in over if each.state != _ENDING]:
            await self._end(charged)
        # Of which launch these are will be known when none is open.
        unclear = {name for name, each in listed.items() if not each.launch} - {*roster}
        return not over and not (unclear and self._open_launches())

    def seconds_with(self, record: TaskRecord, more: int) -> float:
        """Seconds for which the gang could run with so many more nodes; infinite without a cap."""
        rows = self._rows()
        left = self._limits.time_left(record, rows, more)
        return math.inf if left is None else left

    async def give_back(self, instances: Sequence[Instance]) -> None:
        """Ends healthy machines without a rank, which have become useless."""
        names = {instance.id for instance in instances}
        rows = [r for r in self._rows() if r.id in names]
        self._store.put_instances(
            self._lease, [dataclasses.replace(row, state=_GIVEN_BACK) for row in rows]
        )
        await self.end_given_back()

    async def end_given_back(self, roster: Collection[str] | None = None) -> bool:
        """Ends what was given back, as far as it is still there, and records the end of what has gone.

        Args:
            roster: Instances of the gang that runs. With it, those without a rank that were given up are ended, too.

        Returns:
            Whether one of these is still there.
        """
        given = self._in_state(_GIVEN_BACK)
        if roster is not None:
            lost = self._in_state(LOST)
            given |= {name: each for name, each in lost.items() if name not in roster}
        if not given:
            return False
        listed = await self._listed()
        # Those that do not answer are ended as such: nobody waits for their answer.
        there = [
            given[name] if given[name].state == _UNREACHABLE else listed[name]
            for name in given
            if name in listed
        ]
        if there:
            await self._end(there)
            listed = await self._listed()
        rows = self._rows()
        gone = [row for row in rows if row.id in given and row.id not in listed]
        await self._tidy_up(gone)
        self._store.put_instances(self._lease, self._gone(gone))
        return any(name in listed for name in given)

    async def launch_spares(
        self, record: TaskRecord, count: int, agent: Path
    ) -> tuple[list[InstanceRecord], dict[str, str]]:
        """Asks once for machines without a rank.

        Returns:
            Their rows, and the new state of the launch intent, both for the store. Nothing while the launch is under
            way.

        Raises:
            ProviderError: There is no room, or the provider refuses.
            LaunchRefused: The provider would charge what the plan does not say.
        """
        await self._check_free()
        intent = self._intend(record, count, count, agent, purpose=SPARE)
        try:
            return await self._launch_without_rank(intent, SPARE)
        except LaunchPending:
            return [], {}

    async def end_without_rank(self, instance: Instance, *, answers: bool) -> None:
        """Gives back a machine without a rank that is lost or does not get ready. It is not used again."""
        self.set_aside({instance.id}, set() if answers else {instance.id})
        await self._give_up(self._rows())
        if answers:
            await self._end([instance])

    async def as_listed(self, roster: Collection[str]) -> list[Instance]:
        """Returns what the provider says now about these instances, as far as it still lists them."""
        found = await self._threads.run(self._provider.list_instances, self._lease.task_id)
        self._accounts.note(found)
        return [each for each in found if each.id in roster]

    def set_aside(
        self,
        ids: Collection[str],
        out_of_reach: Collection[str],
        sick: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Marks instances that must not be used again. Those that are unreachable are not asked to end.

        Args:
            out_of_reach: Those that do not answer.
            sick: Those whose machines are broken, with what is wrong.
        """
        if not ids:
            return
        stored = {record.id: record for record in self._rows()}
        lost = []
        for record in (stored[name] for name in ids if name in stored):
            state = _UNREACHABLE if record.id in out_of_reach else "running"
            data = {**record.data, "state": state, "sick": sick.get(record.id, "")}
            lost.append(dataclasses.replace(record, state=LOST, data=data))
        self._store.put_instances(self._lease, lost)

    async def end_beside(self, roster: Collection[str], *, doomed_too: bool) -> bool:
        """Ends what is charged beside a gang that is being stopped (see `process/end_lost_launch.py`).

        Args:
            doomed_too: Whether to end also instances of the gang that are ending because others are gone.

        Returns:
            Whether there are such instances, which were kept.

        Raises:
            ProviderError: The call should be repeated.
        """
        if not self._asked.plan.is_paid:
            return False
        listed = await self._listed()
        doomed = {n for n, each in listed.items() if n in roster and each.state == _ENDING}
        if doomed and not doomed_too:
            return True
        beside = {n for n in self._left_over(listed, roster) if listed[n].state != _ENDING}
        if ending := [each for name, each in listed.items() if name in doomed | beside]:
            await self._end(ending)
        return False

    async def end_unusable(self, roster: Collection[str]) -> None:
        """Ends charged instances that the next attempt cannot use, before the delay until it begins."""
        if self._asked.plan.is_paid:
            await self._end_unusable(roster)

    async def look(self) -> None:
        """Records which instances exist now, since when, and at which price. Raises ProviderError."""
        listed = await self._threads.run(self.listed)
        stored = {record.id: record for record in self._rows()}
        rows = [self._accounts.corrected(row) for row in stored.values() if row.ended_at is None]
        rows += [
            self._accounts.record(each, None)
            for each in listed
            if each.id not in stored and each.launched_at
        ]
        if changed := [row for row in rows if row != stored.get(row.id)]:
            self._store.put_instances(self._lease, changed)

    async def watch_prices(self, running: Callable[[], bool]) -> None:
        """Records changing prices while the gang runs, until cancelled. Raises LeaseLost."""
        while True:
            await asyncio.sleep(_PRICES_EVERY)
            if not self._asked.plan.spot or not running():
                continue
            try:
                await self.look()
            except LeaseLost:
                raise
            except (ProviderError, StoreError, OSError) as error:
                say(f"prices cannot be looked at: {error}")

    async def end_all(self, warm_seconds: float = 0.0) -> list[InstanceRecord]:
        """Ends every instance of the task. Returns the rows of those that ended, once the provider lists none.

        Args:
            warm_seconds: How long healthy instances are kept for the next task. Their end is then that far in the
                future.

        Raises:
            NotGone: Some still exist. The call should be repeated.
            ProviderError: Some may still exist. The call should be repeated.
        """
        stored = self._rows()
        if not stored and not self._store.intents(self._lease.task_id):
            return []
        await self._give_up(stored)
        known = {i.id: Instance.from_json(i.data) for i in stored if i.ended_at is None}
        known |= await self._listed()
        lost = {record.id for record in stored if record.state == LOST}
        sound = [instance for name, instance in known.items() if name not in lost]
        warm = await self._keep(sound, warm_seconds) if warm_seconds > 0 and sound else {}
        if ending := [instance for name, instance in known.items() if name not in warm]:
            await self._end(ending)
        if known and (left := await self._threads.run(self.listed)):
            raise NotGone(_what_is_left(left))
        await self._clear()
        kept = [self._accounts.kept(row, *warm[row.id]) for row in stored if row.id in warm]
        # Read again, so that a price recorded meanwhile is not lost.
        rows = self._rows()
        rows += self._accounts.unknown(row.id for row in rows)
        return kept + self._gone(row for row in rows if row.id not in warm and row.state != WARM)

    # Internal

    async def _end(self, instances: Sequence[Instance]) -> None:
        """Has the provider end instances, whose end the store shows later.

        Raises:
            LeaseLost: Another supervisor has taken over while they were listed, and may have launched some of them.
        """
        self._store.make_sure_of(self._lease)
        await self._threads.run(self._provider.terminate, instances)

    async def _tidy_up(self, gone: Sequence[InstanceRecord]) -> None:
        """Has removed what nodes that ended by themselves have left, before their end is recorded."""
        if gone:
            instances = [Instance.from_json(each.data) for each in gone]
            try:
                await self._threads.run(self._provider.tidy_up, instances)
            except (ProviderError, OSError) as error:
                say(f"what ended nodes have left is not removed: {error}")

    async def _clear(self) -> None:
        """Has what was created beside instances removed. If that fails, `flow gc` finds it."""
        try:
            await self._threads.run(self._provider.clear, self._lease.task_id)
        except (ProviderError, OSError) as error:
            say(f"what was created beside the nodes is left to `flow gc`: {error}")

    async def _keep(
        self, instances: list[Instance], seconds: float
    ) -> dict[str, tuple[Instance, float]]:
        """Asks the provider to keep instances warm. Returns those that are kept by id, and until when they are.

        Recorded as an intent first, since kept instances may be charged all that time.
        """
        until = clock.now() + seconds
        token = f"{self._lease.task_id}-keep"
        names = [instance.id for instance in instances]
        self._store.put_intent(self._lease, token, "keep", {"instances": names, "until": until})
        kept = await self._threads.run(self._provider.keep, instances, seconds)
        self._store.settle_intent(self._lease, token, "done" if kept else "refused")
        return {each.id: (each, until) for each in kept}

    async def _give_up(self, stored: Iterable[InstanceRecord]) -> None:
        """Has the machines of lost instances avoided. Of those unreachable, no answer is waited for again."""
        open_records = (r for r in stored if r.state == LOST and r.ended_at is None)
        instances = [Instance.from_json(record.data) for record in open_records]
        if instances:
            await self._threads.run(self._provider.avoid, instances)
        if silent := [each for each in instances if each.state == _UNREACHABLE]:
            await self._end(silent)

    async def usable(self, roster: Collection[str]) -> dict[str, Instance]:
        """Returns the instances of the roster that exist and were not set aside. Ends those set aside first.

        An instance of the roster that is gone counts as lost, even if the attempt did not notice it: the provider's
        listing may show its end only later.
        """
        lost, ending = await self._end_unusable(roster)
        listed = await self._listed()
        if ending and (left := sorted(lost & set(listed))):
            raise NotGone(f"{', '.join(left)}, to be replaced, still exist")
        stored = self._rows()
        gone = [
            dataclasses.replace(r, state=LOST) if r.id in roster else r
            for r in stored
            if r.ended_at is None and (r.id in lost or r.id not in listed)
        ]
        await self._tidy_up(gone)
        self._store.put_instances(self._lease, self._gone(gone))
        return {name: listed[name] for name in roster if name in listed and name not in lost}

    async def _end_unusable(self, roster: Collection[str]) -> tuple[set[str], bool]:
        """Ends instances that were set aside or have no rank.

        Returns:
            The ids of those set aside, and whether any instance was ended.
        """
        stored = self._rows()
        await self._give_up(stored)
        listed = await self._listed()
        lost = {record.id for record in stored if record.state == LOST}
        # Its workers may still run, and the next attempt must not meet them.
        lost |= {name for name, each in listed.items() if each.state == _ENDING}
        unwanted = lost | self._left_over(listed, roster)
        ending = [each for name, each in listed.items() if name in unwanted]
        if ending:
            await self._end(ending)
        return lost, bool(ending)

    def _left_over(self, listed: Mapping[str, Instance], roster: Iterable[str]) -> set[str]:
        """Returns instances without a rank, unless a launch that is open has brought them, or may have."""
        returning = {name for name, each in listed.items() if each.state == _RETURNING}
        kept = {*roster, *self.spares(), *self.joining()} | returning
        if launching := self._open_launches():
            given_back = self._in_state(_GIVEN_BACK)
            kept |= {
                name
                for name, each in listed.items()
                if each.launch in ("", *launching) and name not in given_back
            }
        return set(listed) - kept

    async def _check_free(self) -> None:
        """Refuses to launch a plan with a price of zero if the provider would charge for it. Raises LaunchRefused."""
        plan = self._asked.plan
        if plan.price_per_hour:
            return
        try:
            price = await self._threads.run(self._provider.price_to_launch, plan)
        except ProviderError as error:
            raise LaunchRefused(
                f"whether {self._provider.name} charges for {plan.instance_type} is not known: {error}",
                again=True,
            ) from error
        if price > 0:
            raise LaunchRefused(f"{self._charged(price)}; nothing was launched")

    async def _refuse_charged(self, intent: LaunchIntent, found: list[Instance]) -> None:
        """Ends instances that are charged although the plan's price is zero, since no cap would hold.

        Raises:
            LaunchRefused: There are such instances.
        """
        price = max((each.price_per_hour for each in found), default=0.0)
        if not self._asked.plan.price_per_hour and price > 0:
            await self._end(found)
            self._store.settle_intent(self._lease, intent.token, "undone")
            raise LaunchRefused(f"{self._charged(price)}; they are being ended")

    def _charged(self, price: float) -> str:
        plan = self._asked.plan
        return (
            f"the plan says that {plan.instance_type} costs {dollars(0.0)} per instance and hour, and "
            f"{self._provider.name} charges {dollars(price)} for it, so that no cap could be kept. "
            "Submit the task again: its plan is then made with the settings of now"
        )

    async def _vanished(self, there: Collection[str]) -> list[InstanceRecord]:
        """Returns, with their end, rows of machines that were seen while they booted, and are not of the gang.

        Args:
            there: Instances that the attempt has, with those without a rank.
        """
        rows = self._rows()
        others = [row for row in rows if row.ended_at is None and row.id not in there]
        if not others:
            return []
        listed = await self._threads.run(self.listed)
        stays = {each.id for each in listed if each.state != _ENDING}
        return self._gone(row for row in others if row.id not in stays)

    async def _end_growing(
        self, record: TaskRecord, kept: Collection[str], agent: Path
    ) -> tuple[list[str], list[Instance]] | None:
        """Ends the launch that the attempt before has left open so that the gang grows.

        It is not the one that this attempt needs: it asks for other nodes, since another time, and not for the hosts
        that have become free. Machines of it that boot are waited for, since they are charged.

        Returns:
            Its token and its machines; none if it has brought none and was withdrawn, or there was no such launch.
            None if it was given up while waiting.
        """
        if not self._open_launches(JOINING):
            return [], []
        intent = self._intend(record, 1, 1, agent, purpose=JOINING)
        found = await self._try_to_add(intent, until=0.0, beside=0)
        if found is None:
            return None
        if not found:
            await self._withdraw_all_but((), kept)
            return [], []
        self._accounts.note(found)
        await self._refuse_charged(intent, found)
        return [intent.token], found

    async def _gather(
        self,
        record: TaskRecord,
        lacking: LackingNodes,
        kept: Collection[str],
        began: Sequence[str],
        agent: Path,
    ) -> tuple[list[str], list[Instance]] | None:
        """Launches what an attempt needs, and more as far as there is room for it in time.

        Args:
            began: Tokens of launches that are open and have brought what is kept.

        Returns:
            The tokens of the launches and the new instances; None if it was given up while waiting.
        """
        launched: list[Instance] = []
        tokens: list[str] = []
        until: float | None = None
        while len(launched) < lacking.most:
            count, needed = lacking.most - len(launched), lacking.needed - len(launched)
            but = {*began, *tokens}
            intent = self._intend(record, count, max(1, needed), agent, but)
            found: list[Instance] | None
            if needed > 0:
                if count > needed and (room := self._turn.nodes_to_add()) is not None:
                    intent = dataclasses.replace(intent, count=max(needed, min(count, room)))
                found = await self._launch(intent, record)
            else:
                if until is None:
                    until = self._created_at(intent) + lacking.seconds
                waits = len(launched) < lacking.awaited
                found = await self._try_to_add(
                    intent, until=until if waits else 0.0, beside=len(launched)
                )
            if found is None:
                return None
            if not found:
                there = {*kept, *(each.id for each in launched)}
                await self._withdraw_all_but(but, there)
                break
            self._accounts.note(found)
            await self._refuse_charged(intent, found)
            launched += found
            tokens.append(intent.token)
        return tokens, launched

    async def _try_to_add(
        self, intent: LaunchIntent, *, until: float, beside: int
    ) -> list[Instance] | None:
        """Asks for nodes that the gang does not need, until they come or the time for it is over.

        Machines that boot are waited for, since they are charged.

        Args:
            intent: The launch.
            until: Unix time until which it is tried.
            beside: How many instances are new in this attempt, of which the queue does not know yet.

        Returns:
            The new instances, [] if there is no room; None if it was given up while waiting.
        """
        while True:
            comes = False
            try:
                await self._check_free()
                now = self._as_queue_allows(intent, beside)
                if found := await self._threads.run(self._provider.launch, now):
                    return found
            except LaunchPending as error:
                why, pause, comes = str(error), error.retry_after, not error.queued
            except CapacityUnavailable as error:
                why, pause = str(error), error.retry_after
            except (FlowError, OSError, LaunchRefused) as error:
                why, pause = str(error), _ASK_AGAIN
            left = until - clock.now()
            if left <= 0 and not comes:
                say(f"the gang begins without more nodes: {why}")
                return []
            self._tell_waiting(f"waiting for up to {lifecycle.nodes(intent.count)} more: {why}")
            await self._pause(pause if comes else min(pause, left))
            if self._given_up():
                return None
            if spent := self._limits.spent(self._rows()):
                raise LaunchRefused(spent)

    def _as_queue_allows(self, intent: LaunchIntent, beside: int) -> LaunchIntent:
        """Returns a launch as it may be now. Raises CapacityUnavailable."""
        room = self._turn.nodes_to_add()
        if room is None:
            return intent
        if room <= beside:
            raise CapacityUnavailable("others are before it in the queue", retry_after=_ASK_AGAIN)
        return dataclasses.replace(intent, count=min(intent.count, room - beside))

    async def _withdraw_all_but(self, tokens: Collection[str], kept: Collection[str]) -> None:
        """Withdraws all launches but these, and ends all but what is kept: nothing else is charged beside the gang."""
        withdrawn = [token for token in self._open_launches() if token not in tokens]
        while not self._given_up():
            if await self._withdraw(withdrawn, lambda each: each.id not in kept):
                return
            await self._sleep(_ASK_AGAIN)

    async def _withdraw(self, tokens: Sequence[str], is_over: Callable[[Instance], bool]) -> bool:
        """Ends what these launches may still bring, and settles them when nothing of it is there any more.

        They are open until then: a supervisor that takes over would otherwise ask for others meanwhile.

        Args:
            is_over: Whether an instance is to be ended.

        Returns:
            Whether it is done. Otherwise the call should be repeated.
        """
        listed = await self._threads.run(self.listed)
        if coming := [each for each in listed if each.state != _ENDING and is_over(each)]:
            await self._end(coming)
            return False
        for token in tokens:
            self._store.settle_intent(self._lease, token, "undone")
        return True

    async def _launch(self, intent: LaunchIntent, record: TaskRecord) -> list[Instance] | None:
        since = self._created_at(intent)
        several = failover.has_several(record)
        tries = 0
        quota_since: float | None = None
        while True:
            try:
                # The outcome must be known before anything can be ended, so the call is always awaited.
                return await self._threads.run(self._provider.launch, intent)
            except CapacityUnavailable as error:
                if several:
                    raise PlaceFailed(str(error), Kind.FULL, intent.count, since) from error
                self._check_wait(since, error)
                self._tell_waiting(str(error))
                pause = error.retry_after
            except LaunchPending as error:
                if error.queued and several:
                    self._check_queue(record, since, intent.count, error)
                elif error.queued:
                    self._check_wait(since, error)
                self._tell_waiting(str(error))
                pause = error.retry_after
            except QuotaExceeded as error:
                if several:
                    raise PlaceFailed(str(error), Kind.QUOTA, intent.count, since) from error
                quota_since = quota_since or clock.monotonic()
                if (
                    not self._still_counted(intent)
                    or clock.monotonic() - quota_since > _COUNTED_SECONDS
                ):
                    raise self._refused(intent, error) from error
                self._tell_waiting(
                    f"{error}. A machine that was just given back may be counted still: it is asked again for "
                    f"{_COUNTED_SECONDS / 60:.0f} minutes"
                )
                tries += 1
                pause = min(_LONGEST_QUOTA_PAUSE, 2.0**tries)
            except (ProviderError, ConfigError, CapExceeded) as error:
                if several:
                    # The intent stays open until nothing is left of what may have been launched.
                    final = not _may_succeed(error)
                    kind = Kind.BARRED if final else Kind.REFUSED
                    raise PlaceFailed(str(error), kind, intent.count, since) from error
                raise self._refused(intent, error) from error
            except OSError as error:
                tries += 1
                if tries >= _UNKNOWN_TRIES:
                    text = f"{self._provider.name}: launch failed: {error}"
                    if several:
                        raise PlaceFailed(text, Kind.REFUSED, intent.count, since) from error
                    raise LaunchRefused(text) from error
                pause = 2.0**tries
            if not self._given_up():
                await self._pause(pause)
            if self._given_up():
                return None
            if spent := self._limits.spent(self._rows()):
                raise LaunchRefused(spent)

    def _check_wait(self, since: float, error: ProviderError) -> None:
        """Raises LaunchRefused once a task with one place has waited for room for as long as it may."""
        limit = self._asked.max_wait_seconds
        if limit is not None and clock.now() - since >= limit:
            raise LaunchRefused(
                f"max_wait_hours: no room within {wording.duration(limit)}: {error}"
            )

    def _wait_ends(self, record: TaskRecord, now: float) -> float:
        """Unix time until which a task that asks now may wait for its turn at the present place."""
        limit = self._asked.max_wait_seconds
        if failover.has_several(record):
            came = failover.came_at(record, now)
            queue_ends = came + failover.queue_seconds(record)
            began = failover.began(record) or came
            return queue_ends if limit is None else min(queue_ends, began + limit)
        # Times before a later attempt, and before the tasks of `after=` had completed, are no waiting for room.
        begins = now if record.attempt or self._asked.after else record.created_at
        return math.inf if limit is None else begins + limit

    def _not_its_turn(self, record: TaskRecord, count: int, asked_at: float) -> Exception:
        if failover.has_several(record):
            came, now = failover.came_at(record, asked_at), clock.now()
            text = f"in use by others for {wording.duration(now - came)}"
            return PlaceFailed(text, Kind.QUEUED, count, came, turn=True)
        limit = wording.duration(self._asked.max_wait_seconds or 0.0)
        # The queue says there which tasks had the places.
        last = self._store.get_task(self._lease.task_id).reason
        known = last.startswith("waiting for ")
        why = f"at last {last}" if known else "other tasks had the places, or were before it"
        return LaunchRefused(f"max_wait_hours: no room within {limit}; {why}")

    def _check_queue(
        self, record: TaskRecord, since: float, count: int, error: LaunchPending
    ) -> None:
        """Raises PlaceFailed once a launch has been queued for long enough to ask another place."""
        now, limit = clock.now(), self._asked.max_wait_seconds
        waited = now - since
        is_over = limit is not None and now - (failover.began(record) or since) >= limit
        if is_over or waited >= failover.queue_seconds(record):
            text = f"nothing within {wording.duration(waited)} ({error})"
            raise PlaceFailed(text, Kind.QUEUED, count, since) from error

    def _refused(self, intent: LaunchIntent, error: FlowError) -> LaunchRefused:
        self._store.settle_intent(self._lease, intent.token, "refused")
        text = f"{self._provider.name} refused the launch: {error}"
        return LaunchRefused(text, again=_may_succeed(error))

    def _still_counted(self, intent: LaunchIntent) -> bool:
        """Whether instances of the task have ended recently, which the provider may count for some minutes more."""
        since = clock.now() - _COUNTED_SECONDS
        earlier = self._store.instances(intent.task_id)
        return any(
            row.state == LOST if row.ended_at is None else row.ended_at > since for row in earlier
        )

    async def _pause(self, seconds: float) -> None:
        """Sleeps until the next call of a launch. Looks at machines that boot now and then."""
        if self._asked.plan.is_paid and clock.monotonic() >= self._look_at:
            self._look_at = clock.monotonic() + _LOOK_EVERY
            with suppress(ProviderError, OSError):
                await self.look()
        await self._sleep(self._nap(seconds))

    def _nap(self, pause: float) -> float:
        """Returns the pause until the next call, shortened if the money runs out before."""
        rows = self._rows()
        if all(row.ended_at is not None for row in rows):
            return pause
        paid = self._limits.paid_seconds(rows)
        return max(_SHORTEST_NAP, pause if paid is None else min(pause, paid))

    def _intend(
        self,
        record: TaskRecord,
        count: int,
        least: int,
        agent: Path,
        but: Collection[str] = (),
        purpose: str = "",
    ) -> LaunchIntent:
        """Records a launch intent. The open intent of a supervisor that was killed is used again.

        Args:
            least: With how many the launch is content.
            agent: The agent's zipapp on this machine.
            but: Tokens of open intents that this call of `complete` has launched already.
            purpose: SPARE or JOINING for a launch while an attempt runs, which goes on with its own intents only. The
                next attempt goes on with all that are open.
        """
        preload = {
            "agent": str(agent),
            "call": self._asked.call,
            "environment": self._asked.environment,
            "processes_per_node": self._asked.workers_per_node,
            "secrets": self._asked.secrets,
            "warm_seconds": self._asked.warm_seconds,
            "setup": bool(self._asked.setup),
        }
        launches = [intent for intent in self._intents() if intent.kind == "launch"]
        left_open = [
            intent
            for intent in launches
            if intent.is_open_launch and intent.token not in but and purpose in ("", intent.purpose)
        ]
        if left_open:
            return dataclasses.replace(LaunchIntent.from_json(left_open[0].data), preload=preload)
        fresh = LaunchIntent(
            token=f"{record.id}-launch-{_highest(launches) + 1}",
            task_id=record.id,
            count=count,
            plan=self._limits.plan_left(record, self._rows()).to_json(),
            least=least if least < count else 0,
            beside=bool(purpose),
        )
        data = {**fresh.to_json(), "purpose": purpose} if purpose else fresh.to_json()
        self._store.put_intent(self._lease, fresh.token, "launch", data)
        # One that grows may be refused every minute for days. The last one stays, since no number is used again.
        refused = [
            each.token for each in launches if each.state == "refused" and each.purpose == JOINING
        ]
        self._store.delete_intents(self._lease, [*refused, *self._long_over(launches)])
        return dataclasses.replace(fresh, preload=preload)

    def _long_over(self, launches: Sequence[Intent]) -> list[str]:
        """Tokens of launches that came to nothing, without the latest.

        A search asks each place every five minutes, perhaps for weeks, and each change of the task writes all intents.
        """
        vain = [
            each.token
            for each in launches
            if each.state in ("refused", "undone") and each.purpose != JOINING
        ][:-_MOST_VAIN]
        if not vain:
            return []
        rows = self._rows()
        known = {str(row.data.get("launch") or "") for row in rows}
        return [token for token in vain if token not in known]

    def _created_at(self, intent: LaunchIntent) -> float:
        return next(each.created_at for each in self._intents() if each.token == intent.token)

    def _asked_at(self, instance: Instance) -> float:
        """When an instance was asked for; 0 if that is not known."""
        launches = self._store.launch_times(self._lease.task_id)
        mine = [at for token, _, at in launches if token == instance.launch]
        mine = mine or [at for _, state, at in launches if state == "open"]
        return min(mine, default=0.0)

    def _open_launches(self, purpose: str = "") -> list[str]:
        """Tokens of the launches that are open; of those for one purpose, if it is named."""
        return [
            each.token
            for each in self._intents()
            if each.is_open_launch and purpose in ("", each.purpose)
        ]

    async def _listed(self) -> dict[str, Instance]:
        return {each.id: each for each in await self._threads.run(self.listed)}

    def _intents(self) -> list[Intent]:
        return self._store.intents(self._lease.task_id)

    def _rows(self) -> list[InstanceRecord]:
        return self._store.instances(self._lease.task_id)

    def _rows_without_rank(self, instances: Iterable[Instance], state: str) -> list[InstanceRecord]:
        known = {record.id: record for record in self._rows()}
        rows = (self._accounts.record(each, known.get(each.id)) for each in instances)
        return [dataclasses.replace(row, state=state) for row in rows]

    def _records(self, instances: list[Instance]) -> list[InstanceRecord]:
        known = {record.id: record for record in self._rows()}
        return [
            self._accounts.record(instance, known.get(instance.id), rank)
            for rank, instance in enumerate(instances)
        ]

    def _gone(self, records: Iterable[InstanceRecord]) -> list[InstanceRecord]:
        """Returns the rows with their end."""
        now = clock.now()
        return [self._accounts.ended(record, now) for record in records]


def _what_is_left(left: Sequence[Instance]) -> str:
    """Returns which instances still exist or, if none is known to, until when that is not certain."""
    if there := [each.id for each in left if not each.unconfirmed]:
        return f"{', '.join(there[:5])} still exist"
    until = max(each.certain_from for each in left)
    at = f" until {time.strftime('%H:%M:%S', time.localtime(until))}" if until else " yet"
    return f"whether its launch has created machines is not certain{at}"


def _highest(launches: Iterable[Intent]) -> int:
    """The highest number in the tokens of these launches; 0 if there are none."""
    return max((int(each.token.rpartition("-")[2]) for each in launches), default=0)


def _may_succeed(error: FlowError) -> bool:
    """Whether another launch may succeed after this error."""
    final = (QuotaExceeded, PermissionRefused, ConfigError, CapExceeded)
    return not isinstance(error, final)
