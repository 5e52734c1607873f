"""The supervisor: one detached process per task, from the intent to launch until its nodes are gone.

Every action is recorded in the store first, and the main loop decides only from the state in the store. A supervisor
that takes over after a kill therefore does the same as one that was never interrupted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import traceback
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.errors import (
    LeaseLost,
    NodeUnreachable,
    PermissionRefused,
    ProviderError,
    StoreDamaged,
    StoreError,
)
from flowlite.node.protocol import messages
from flowlite.node.system import trace
from flowlite.node.system.atomic_files import write_atomically
from flowlite.output import redact
from flowlite.provider import Instance, Provider
from flowlite.state import clock
from flowlite.state.store import InstanceRecord, Lease, Store, TaskRecord
from flowlite.supervise import failover
from flowlite.supervise.attempt import unreachable_nodes
from flowlite.supervise.attempt.attempt import Attempt
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.outcome import End
from flowlite.supervise.attempt.provider_verdict import as_told
from flowlite.supervise.attempt.shared_listing import SharedListing
from flowlite.supervise.attempt.unfetched import HoldingPlace
from flowlite.supervise.failover import Kind, PlaceFailed
from flowlite.supervise.money import price_text
from flowlite.supervise.money.caps import Caps, pause_after_preemption
from flowlite.supervise.money.cost import cost_of
from flowlite.supervise.process import (
    code_on_disk,
    growth,
    notifications,
    store_loss,
    supervisor_process,
)
from flowlite.supervise.process.end_lost_launch import COLLECT_SECONDS, end_remains
from flowlite.supervise.process.growth import GROWTH, Growth
from flowlite.supervise.process.journal import Journal
from flowlite.supervise.process.led_task import LedTask
from flowlite.supervise.process.place_search import NoPlaceLeft, PlaceSearch
from flowlite.supervise.process.resuming import has_machines
from flowlite.supervise.process.spares import Spares
from flowlite.supervise.process.task_lease import Patience, TaskLease
from flowlite.supervise.provision import LaunchRefused, NotGone, Provisioner
from flowlite.supervise.queue.turn import Turn
from flowlite.supervise.queue.waking import wake_due
from flowlite.supervise.record import lifecycle, wording
from flowlite.supervise.record.lifecycle import State, TaskEvent
from flowlite.supervise.record.log import say
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from flowlite.supervise.waiting import wait_for_event, wait_until

Value = TypeVar("Value")

_GUARD_EVERY = 0.5
# The agents end their workers at the deadline themselves. After this many seconds more, the supervisor does. So it does
# with those of a cancelled task that it cannot follow.
_DEADLINE_SLACK = 15.0
_STORE_PAUSE = 2.0
# How often a provider that cannot be asked is retried, with growing pauses. There is no limit when nodes are ended, and
# one that only does not answer is asked for as long as machines may take to start.
_MOST_FAILURES = 8
_LONGEST_PAUSE = 30.0
# How often a provider may refuse the credentials of this process while nodes are ended. The next supervisor may have
# others.
_MOST_REFUSALS = 8
# How often it is looked whether a launch without an answer has created machines.
_LOOK_EVERY = 5.0
# How often a bid of a task that is handed back is asked to end, until it has.
_WITHDRAW_EVERY = 1.0
# Ending nodes is retried for days if need be. The first tries are not reported, since machines take a while to end.
_LONGEST_PAUSE_TO_END = 300.0
_QUIET_TRIES = 5

# Outcomes after which the gang may be started again. A preemption does not use up a retry.
_RETRIED = frozenset({messages.FAILED, messages.LOST, messages.MISSING})
# Outcomes that use up no retry.
_UNCOUNTED = frozenset({messages.PREEMPTED, messages.SICK, messages.GROWING})
# Outcomes after which the nodes themselves count as healthy.
_SOUND = frozenset({messages.DONE, messages.FAILED, messages.STOPPED})


class Supervisor:
    """Leads one task. Every write is fenced by its lease.

    Attributes:
        launches: Whether machines may be launched for the task, as far as that was found out.
        warm_seconds: How long the task's nodes are kept for the next task, once the task is final.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        record: TaskRecord,
        lease: Lease,
        provider: Provider,
        *,
        launches: bool = True,
    ) -> None:
        """
        Args:
            lease: Its lease, which this supervisor holds.
            provider: The adapter of the place where it is now.
            launches: Whether machines may be launched for a task that has none. If not, it is handed back.
        """
        self._store = store
        self._home = home
        self._provider = provider
        self._paths = TaskPaths(home, record.id)
        self._asked = TaskView.of(record)
        self._limits = Caps(self._asked.plan, record.config)
        self._threads = Threads()
        self._journal = Journal(store, lease, record, redact.of_file(self._paths.secrets))
        self._cancelled = asyncio.Event()
        self._cancelled_at = 0.0
        self._attempt: Attempt | None = None
        self._growing: Growth | None = None
        self._spent = ""
        self._failures = 0
        self._failing_since = 0.0
        self._refused = False
        self._patience = Patience(self._paths.directory)
        self._store_is_gone = False
        self._instances_known: list[Instance] = []
        self._sound = False
        self._capped = False
        self.warm_seconds = 0.0
        self.launches = launches
        self._handed_back = False
        self._leading = TaskLease(store, lease)
        self._fresh: list[Instance] = []
        self._agent: tuple[Path, str] | None = None
        self._turn = Turn(
            store, record.id, self._sleep, self._journal.waiting, self._cancelled.is_set
        )
        self._provisioner = Provisioner(
            store, lease, provider, self._asked, self._threads, self._turn
        )
        self._search = PlaceSearch(
            store,
            home,
            self._journal,
            provider,
            self._provisioner,
            self._asked.max_wait_seconds,
            self._sleep,
        )

    @property
    def has_moved(self) -> bool:
        """Whether the task has another place now, and needs a supervisor with the adapter of that place."""
        return self._search.has_moved

    @property
    def _record(self) -> TaskRecord:
        return self._journal.record

    async def run(self) -> None:
        """Leads the task to its final state or to another place (`has_moved`), or leaves it to the next supervisor.

        Raises:
            LeaseLost: Another supervisor has taken over.
        """
        if self._record.cancel_requested_at is not None:
            self._hear_cancellation()
        watches = [
            asyncio.create_task(watch)
            for watch in (
                self._leading.keep(),
                self._leading.watch(
                    self._cancel,
                    self._is_waiting,
                    self._lose_store,
                    Patience(self._paths.directory),
                    self._paths.cancel,
                ),
                self._guard(),
                self._provisioner.watch_prices(lambda: self._record.state == State.RUNNING),
            )
        ]
        life = asyncio.create_task(self._live())
        try:
            done, _ = await asyncio.wait({life, *watches}, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                finished.result()
        finally:
            for task in (life, *watches):
                task.cancel()
            await asyncio.gather(life, *watches, return_exceptions=True)
            self._threads.close()

    # Main loop

    async def _live(self) -> None:
        while not (self._record.final or self.has_moved or self._handed_back):
            try:
                await self._go_on()
                self._patience.well()
            except LeaseLost:
                raise
            except StoreError as error:
                damaged = isinstance(error, StoreDamaged)
                if damaged and (self._store_is_gone or self._patience.is_over()):
                    await self._leave(error)
                    raise
                # Most likely the disk is full. The gang runs on meanwhile, and nothing is done that is not recorded
                # first.
                say(f"the store cannot be used, trying again: {error}")
                await self._wait_for_store()
                with suppress(StoreError):
                    self._journal.reload()
                    # If only another file cannot be written, the store can still tell the user.
                    self._journal.waiting(str(error))

    async def _wait_for_store(self) -> None:
        """Waits until the store can be written, or until there is something to do without it.

        Nodes that are charged are not asked anything meanwhile. Agents whose gang has ended stay for as long as a
        supervisor talks to them, and so do their machines.
        """
        ended = False
        while True:
            await self._pause(_STORE_PAUSE)
            try:
                self._leading.renew()
                return
            except LeaseLost:
                raise
            except StoreDamaged:
                return
            except StoreError as error:
                if ended:
                    continue
                if not self._cancelled.is_set():
                    if self._asked.plan.is_paid:
                        continue
                    # The next attempt goes on with the gang.
                    return
                if not (self._is_dear and self._should_have_stopped()):
                    # It passes the cancellation on to the ranks.
                    return
                # Whoever leads the task by now, or after this supervisor, ends them, too.
                say(f"the nodes of the cancelled task are ended unrecorded: {error}")
                ended = await self._end_without_record()

    def _should_have_stopped(self) -> bool:
        """Whether the ranks of a cancelled task have had the time that they may take to stop."""
        since = clock.monotonic() - self._cancelled_at
        return since > self._asked.time_to_stop + _DEADLINE_SLACK

    async def _go_on(self) -> None:
        """Advances the task by one step, and records what prevented it. Raises StoreError."""
        try:
            with trace.span(self._record.state):
                await self._advance()
            self._failures = 0
        except StoreError:
            raise
        except (ProviderError, OSError) as error:
            # A node that does not answer is not a failure of the provider.
            ending = bool(self._record.outcome)
            if ending and await self._can_begin_anew():
                # The new version may know how to end what this one tries to end in vain.
                raise
            if not self._failures:
                self._failing_since = clock.monotonic()
            self._failures += ending or not isinstance(error, NodeUnreachable)
            await self._after_trouble(error)
        except Exception as error:
            if code_on_disk.have_changed():
                # What was imported only now may not fit the rest. A process that begins anew leads the task on.
                raise
            say(traceback.format_exc())
            self._failures += 1
            if self._record.outcome:
                await self._after_trouble(error)
            else:
                self._conclude(
                    "failed",
                    f"the supervisor failed: {type(error).__name__}: {error} (a defect of flowlite; "
                    f"details: {self._paths.supervisor_log})",
                )

    async def _can_begin_anew(self) -> bool:
        """Whether flowlite was upgraded and can be imported. Without a supervisor, the nodes would run on."""
        changed = code_on_disk.have_changed()
        return changed and await self._threads.run(supervisor_process.can_be_imported, self._home)

    def _lose_store(self) -> None:
        """Stops everything in progress once the store is lost for good, so that the main loop notices."""
        if not self._store_is_gone:
            self._store_is_gone = True
            self._hear_cancellation()
            self._stop_attempt("cancel", "the store of the task is gone")

    async def _leave(self, error: StoreError) -> None:
        """Ends the nodes without the store. No other process could."""
        say(f"the nodes are ended, and so is this supervisor: {error}")
        await self._end_without_record()

    async def _end_without_record(self) -> bool:
        """Ends the nodes although the store cannot be written. Returns whether none is left."""
        known = [*self._fresh, *self._instances_known]
        return await store_loss.end_nodes(
            self._provider, self._threads, self._provisioner.listed, known
        )

    async def _after_trouble(self, error: Exception) -> None:
        """Waits before the next try after an error. Fails the task after too many, unless its nodes are being ended."""
        failures = self._failures
        what = str(error) or type(error).__name__
        ending = bool(self._record.outcome)
        longest = _LONGEST_PAUSE_TO_END if ending else _LONGEST_PAUSE
        pause = min(longest, 0.2 * 2 ** min(failures, 16))
        say(f"trying again in {pause:.1f} s: {what}")
        if ending and self._needs_other_credentials(error):
            # The next `flow` command starts a supervisor, with the credentials of its own environment.
            with suppress(StoreError):
                self._journal.left_to_next(what)
                self._handed_back = True
                return
        if ending:
            if not isinstance(error, NotGone) or failures > _QUIET_TRIES:
                with suppress(StoreError):
                    self._journal.not_gone(what, pause)
        elif self._is_waiting() and (
            isinstance(error, NotGone) or failover.is_leaving(self._record)
        ):
            # Machines take minutes to end. Those that replace them must not be launched before.
            self._journal.waiting(what)
        elif failures >= _MOST_FAILURES:
            if not self._may_answer(error):
                self._conclude("failed", f"{self._provider.name}: {what}")
                return
            self._journal.waiting(what)
        await self._pause(pause)

    def _needs_other_credentials(self, error: Exception) -> bool:
        """Whether the provider will not accept the credentials of this process any more, as far as can be seen."""
        over = self._refused or self._failures >= _MOST_REFUSALS
        return isinstance(error, PermissionRefused) and over

    def _may_answer(self, error: Exception) -> bool:
        """Whether a provider that has failed so often is asked again, since it has not refused anything."""
        if isinstance(error, PermissionRefused) or self._money_is_spent():
            return False
        return clock.monotonic() - self._failing_since < self._asked.plan.start_seconds

    async def _advance(self) -> None:
        """Advances the task by one step from its present state."""
        if not (self.launches or self._record.outcome):
            self.launches = await self._finds_machines()
        state = self._record.state
        if state == State.PENDING:
            await self._begin()
        elif state == State.PROVISIONING:
            await self._provision()
        elif state == State.STOPPING and self._record.outcome:
            await self._finish()
        elif self._record.attempt == 0:
            self._conclude("failed", self._journal.last_reason())
        else:
            await self._run_attempt()

    async def _begin(self) -> None:
        """Waits for the tasks that must have completed before, and begins."""
        problem = await self._turn.to_begin(self._asked.after)
        if self._cancelled.is_set() or problem is None:
            self._journal.step(TaskEvent.CANCEL, outcome="cancelled")
        elif problem:
            self._conclude("failed", problem)
        else:
            self._journal.step(TaskEvent.BEGIN, nodes=lifecycle.nodes(self._asked.plan.size))

    def _conclude(self, outcome: str, reason: str) -> None:
        """Records how the task ends. Only teardown follows."""
        event = {"done": TaskEvent.DONE, "cancelled": TaskEvent.CANCEL}.get(
            outcome, TaskEvent.FAILURE
        )
        if (State(self._record.state), event) not in lifecycle.TABLE:
            event = TaskEvent.FAILURE
        self._journal.step(event, outcome=outcome, why=reason)

    # Nodes

    async def _provision(self) -> None:
        if self._cancelled.is_set():
            self._conclude("cancelled", "")
            return
        if not self.launches and not failover.is_leaving(self._record):
            await self._hand_back()
            return
        several = failover.has_several(self._record)
        try:
            if several and not await self._search.may_launch():
                return
            self._agent = self._agent or _agent_zip(self._home)
            with trace.span("launch"):
                gathered = await self._provisioner.complete(self._record, self._agent[0])
        except PlaceFailed as error:
            self._search.note_failure(error)
            return
        except LaunchRefused as error:
            if several and not isinstance(error, NoPlaceLeft) and not self._money_is_spent():
                kind = Kind.REFUSED if error.again else Kind.BARRED
                self._search.note_failure(PlaceFailed(str(error), kind))
                return
            await self._launch_again(error)
            return
        if gathered is None:
            self._conclude("cancelled", "")
            return
        unreachable_nodes.begin_if_left(self._home, self._provider)
        self._fresh = gathered.instances
        before, new = self._record.roster, {each.id for each in gathered.launched}
        self._journal.step(
            TaskEvent.LAUNCHED,
            nodes=lifecycle.nodes(len(gathered.roster)),
            attempt=self._record.attempt + 1,
            roster=gathered.roster,
            instances=gathered.records,
            settled=gathered.settled,
        )
        wake_due(self._store)
        if gathered.joined:
            text = f"the gang goes on with {lifecycle.nodes(len(gathered.roster))}"
            self._journal.note(GROWTH, text)
        new |= set(gathered.joined)
        for rank, name in enumerate(gathered.roster if before else ()):
            if name not in before and name not in new:
                self._journal.note("spare", f"the spare {name} takes the rank of node {rank}")
        for told in dict.fromkeys(each.note for each in gathered.launched if each.note):
            self._journal.note("warning", told)
        if several:
            where = f"attempt {self._record.attempt} runs at {self._asked.plan.place}"
            self._journal.note("place", where, {"candidate": self._record.candidate})
        if self._asked.plan.is_paid:
            self._journal.note("price", price_text.sentence(self._asked.plan))

    async def _finds_machines(self) -> bool:
        """Whether the task has machines to continue with. Waits until the provider can say so."""
        # The machines of a place that is being left are no use at the next one.
        while not (failover.is_leaving(self._record) or self._cancelled.is_set()):
            try:
                listed = await self._threads.run(self._provisioner.listed)
            except PermissionRefused:
                if self._is_waiting():
                    raise
                # Those of its gang are in the store. Whether it has machines is asked again before others are launched.
                return False
            found = has_machines(self._store, self._record.id, listed)
            if found is not None:
                return found
            if self._is_waiting():
                self._journal.waiting("whether its launch has created machines is not known yet")
            await self._sleep(_LOOK_EVERY)
        return False

    async def _hand_back(self) -> None:
        """Leaves a task without machines to `flow resume`, with the end of those it had recorded."""
        while not await self._provisioner.withdraw_joining(self._record.roster):
            if self._cancelled.is_set():
                return
            await self._sleep(_WITHDRAW_EVERY)
        await self._provisioner.usable(self._record.roster)
        self._store.park(self._record.id, "has no machines, and none are launched unasked")
        self._handed_back = True

    async def _launch_again(self, refused: LaunchRefused) -> None:
        """Launches again after a launch that failed, if a retry is left and another launch may succeed."""
        used, most = self._record.retries_used + 1, self._asked.retries.max_retries
        over = used > most or self._money_is_spent()
        if not refused.again or over or self._cancelled.is_set():
            self._conclude("failed", str(refused))
            return
        delay = self._asked.retries.delay_before(used)
        why = f"asking for nodes again ({used} of {most}) after: {refused}"
        self._journal.step(TaskEvent.RETRY, why=why, retries_used=used)
        await self._sleep(delay)

    async def _finish(self) -> None:
        """Ends every instance, and makes the task final once the provider lists none."""
        stored = self._store.instances(self._record.id)
        given_up = self._cancelled.is_set() and self._is_dear
        wanted = self._asked.warm_seconds if self._sound and not given_up else 0.0
        with trace.span("end the nodes"):
            ended = await self._provisioner.end_all(self._limits.warm_seconds(wanted, stored))
        self._journal.kept_warm(ended)
        now = clock.now()
        # A cap may end them sooner than was asked for.
        until = [each.ended_at or now for each in ended if each.state == "warm"]
        self.warm_seconds = max(until, default=now) - now
        by_id = {i.id: i for i in self._store.instances(self._record.id)}
        by_id |= {i.id: i for i in ended}
        # Nothing runs any more that needs the credentials of buckets. No supervisor comes after the next step.
        with suppress(OSError):
            self._paths.storage.unlink()
        self._journal.step(
            lifecycle.GONE[self._record.outcome],
            why=self._journal.last_reason(),
            finished_at=now,
            cost=cost_of(by_id.values(), now),
            instances=ended,
        )
        unreachable_nodes.begin_if_left(self._home, self._provider)
        notifications.begin(self._paths, notifications.CAP if self._capped else self._record.state)
        await self._end_kept_if_cancelled([each for each in ended if each.state == "warm"])

    async def _end_kept_if_cancelled(self, kept: list[InstanceRecord]) -> None:
        """Ends machines that were kept before the cancellation was heard.

        Whoever cancels a task of a sweep then ends what is kept, and may have found nothing yet. A task that is final
        cannot be cancelled any more, and what it keeps is in the store.
        """
        asked = self._store.get_task(self._record.id).cancel_requested_at is not None
        if kept and asked and self._is_dear:
            instances = [Instance.from_json(each.data) for each in kept]
            try:
                await self._threads.run(self._provider.terminate, instances)
            except (ProviderError, OSError) as error:
                say(f"what was kept ends when its time is over, or by `flow gc --warm`: {error}")
                return
            self._store.end_warm([each.id for each in kept], clock.now())
            self.warm_seconds = 0.0

    # One attempt

    async def _run_attempt(self) -> None:
        self._agent = self._agent or _agent_zip(self._home)
        nodes = await self._nodes()
        instances = [node.instance for node in nodes]
        attempt = Attempt(
            asked=self._asked,
            paths=self._paths,
            name=self._record.name,
            attempt=self._record.attempt,
            nodes=nodes,
            max_run_seconds=self._time_left(),
            agent=self._agent,
            threads=self._threads,
            on_event=lambda event: self._gang_event(growing, event),
            before_writing=self._leading.make_sure,
            elsewhere=functools.partial(self._answers_beside, instances),
            certain=self._provider.listing_is_proof,
            paid_seconds=self._limits.paid_seconds(self._instances()),
            began=self._journal.has_started,
        )
        self._attempt = attempt
        task = LedTask(
            self._provider,
            self._asked,
            self._paths,
            self._journal,
            self._provisioner,
            self._threads,
            self._agent,
        )
        spares = Spares(task)
        growing = self._growing = Growth(task, attempt.ask_to_grow)
        spares.begin()
        growing.begin()
        if self._cancelled.is_set():
            self._stop_attempt("cancel", "cancelled")
        ending_remains = asyncio.create_task(
            end_remains(
                self._provisioner,
                self._record.roster,
                lambda: attempt.in_doubt,
                self._asked.time_to_stop + COLLECT_SECONDS,
            )
        )
        try:
            end = await attempt.run()
            await growing.close()
            await spares.close()
            self._journal.flush()
            await self._decide(attempt, end)
        finally:
            self._attempt = self._growing = None
            ending_remains.cancel()
            await asyncio.gather(ending_remains, return_exceptions=True)
            await growing.close()
            await spares.close()
            await attempt.close()

    def _gang_event(self, growing: Growth, event: dict[str, Any]) -> None:
        self._journal.gang_event(event)
        growing.heard(event)

    async def _nodes(self) -> list[Node]:
        """Returns the nodes of the attempt by rank: as just launched or, after a take-over, as stored and listed."""
        found = {instance.id: instance for instance in self._fresh}
        listed = found
        if not all(name in found for name in self._record.roster):
            stored = self._store.instances(self._record.id)
            found = {i.id: Instance.from_json(i.data) for i in stored}
            there = await self._listed_unless_refused()
            # Without a listing, none of them counts as gone.
            listed = found if there is None else there
            found |= listed
        self._fresh = []
        self._instances_known = [found[name] for name in self._record.roster]
        listing = SharedListing(lambda: self._provider.list_instances(self._record.id))
        return [
            Node(
                self._provider,
                found[name],
                self._provider.node_settings(self._asked.plan, found[name]),
                rank,
                self._record.attempt,
                listed=name in listed,
                listing=listing,
            )
            for rank, name in enumerate(self._record.roster)
        ]

    async def _listed_unless_refused(self) -> dict[str, Instance] | None:
        """Returns the listed instances by id, or None if the provider refuses the credentials of this process.

        Nodes are reached without these credentials, so a gang that runs is led on.
        """
        try:
            listed = await self._threads.run(self._provisioner.listed)
        except PermissionRefused as error:
            self._refused = True
            self._journal.credentials_refused(str(error))
            return None
        self._journal.credentials_accepted()
        return {each.id: each for each in listed}

    async def _decide(self, attempt: Attempt, end: End) -> None:
        """Ends the task or starts another attempt, depending on how this one ended."""
        end = await self._retain(attempt, await self._as_listed(attempt, self._as_asked(end)))
        self._sound = self._may_be_kept(end)
        self._provisioner.set_aside(end.replace, attempt.out_of_reach, self._sick(attempt))
        conclusion = self._conclusion(end)
        if conclusion is None:
            await self._retry(attempt, end)
        else:
            await self._end_with(attempt, end, *conclusion)

    def _conclusion(self, end: End) -> tuple[str, str] | None:
        """Returns the task's outcome and its reason, or None if another attempt follows."""
        if end.outcome == messages.DONE:
            return "done", ""
        if self._cancelled.is_set() and end.outcome != messages.FAILED:
            started = self._record.started_at is not None
            when = "while running" if started else "before the ranks started"
            return "cancelled", f"cancelled {when}"
        if end.outcome == messages.DEADLINE:
            self._capped = True
            return "failed", self._spent or self._limits.time_is_over(self._record, end.reason)
        if not self._may_retry(end):
            return "failed", end.reason
        # Nodes are charged during the delay too, and it counts as time of the run.
        if nothing_left := self._nothing_left(self._delay_after(end)):
            self._capped = True
            return "failed", f"{end.reason}; {nothing_left}"
        return None

    async def _end_with(self, attempt: Attempt, end: End, outcome: str, reason: str) -> None:
        """Concludes the task after fetching its outputs. The nodes are given back after that."""
        if self._asked.outputs:
            to = Path(json.loads(self._paths.outputs.read_bytes())["to"])
            brought = await attempt.bring_outputs(to, end)
            self._journal.note("outputs", brought.sentence(), brought.to_json())
            write_atomically(self._paths.outputs, json.dumps(brought.to_json()).encode())
            if brought.missing and outcome == "done":
                outcome = "cancelled" if self._cancelled.is_set() else "failed"
                reason = (
                    f"every rank ended well, but not all outputs are here: {brought.sentence()}"
                )
        self._conclude(outcome, reason)

    async def _retain(self, attempt: Attempt, end: End) -> End:
        """Keeps files that were not fetched on their nodes, where that costs nothing.

        Returns:
            The end, with a reason that says where the files are.
        """
        if not end.lacking:
            return end
        by_rank = {each.node: each for each in end.lacking}
        nodes = [node for node in attempt.nodes if node.rank in by_rank]
        there = [n.instance for n in nodes if by_rank[n.rank].place is not HoldingPlace.GONE]
        kept = {each.id for each in await self._threads.run(self._provider.retain, there)}
        self._journal.lacking(end, [(n, by_rank[n.rank], n.instance.id in kept) for n in nodes])
        if not (end.ended_well and kept) or end.outcome == messages.STOPPED:
            return end
        where = f"they are kept there: `flow result {self._record.id}` brings them"
        return dataclasses.replace(end, reason=f"{end.reason}; {where}")

    def _as_asked(self, end: End) -> End:
        """Returns an end by growth as a failure if nobody has asked the ranks to stop.

        What nobody has asked for, no leader and no report says that is not broken. It would use up no retry for ever.
        """
        asked = end.outcome == messages.GROWING and growth.was_asked(
            self._store, self._record, self._asked
        )
        if asked or end.outcome != messages.GROWING:
            return end
        why = f"the ranks have stopped to grow, and nobody has asked for that: {end.reason}"
        return dataclasses.replace(end, outcome=messages.FAILED, reason=why)

    async def _as_listed(self, attempt: Attempt, end: End) -> End:
        """Asks the provider whether machines were taken away without notice, and returns the end corrected for that."""
        taker = self._provider.may_take_away
        asked = taker or self._asked.plan.spot
        if not (
            (asked and end.outcome in _RETRIED) or (taker and end.outcome == messages.PREEMPTED)
        ):
            return end
        ask = functools.partial(self._provisioner.as_listed, self._record.roster)
        names = {node.instance.id: node.name for node in attempt.nodes}
        with suppress(ProviderError, OSError):
            return await self._unless_cancelled(as_told(end, ask, taker, names)) or end
        return end

    def _may_be_kept(self, end: End) -> bool:
        """Whether the nodes may be kept for another task.

        They must be healthy, and a task whose nodes cost something must not have been cancelled.
        """
        sound = end.outcome in _SOUND and not end.replace and not end.lacking
        return sound and not (self._cancelled.is_set() and self._is_dear)

    @property
    def _is_dear(self) -> bool:
        """Whether nodes that nobody uses are charged, or lacking elsewhere."""
        return self._asked.plan.is_paid or self._provider.keeps_gangs

    def _may_retry(self, end: End) -> bool:
        if self._cancelled.is_set():
            return False
        if end.outcome == messages.PREEMPTED:
            return True
        if end.outcome == messages.GROWING:
            return True
        if end.outcome == messages.SICK:
            return self._may_replace_sick()
        if self._spare_takes_over(end) or self._goes_on_without(end):
            return True
        return (
            end.outcome in _RETRIED and self._record.retries_used < self._asked.retries.max_retries
        )

    def _sick(self, attempt: Attempt) -> dict[str, str]:
        """What is wrong with machines, as it may be stored, since other tasks show it too."""
        return {name: self._journal.readable(why) for name, why in attempt.sick.items()}

    def _spare_takes_over(self, end: End) -> bool:
        """Whether spares take the ranks of all nodes that this attempt has lost. That uses up no retry."""
        lost = set(end.replace) & set(self._record.roster)
        return end.outcome == messages.LOST and 0 < len(lost) <= len(self._provisioner.spares())

    def _goes_on_without(self, end: End) -> bool:
        """Whether an elastic gang continues without the nodes that it has lost. That uses up no retry."""
        lost = end.outcome == messages.LOST and bool(end.replace)
        return self._asked.is_elastic and lost and self._journal.has_started

    def _may_replace_sick(self) -> bool:
        """Whether another attempt may replace a node that was found to be broken before GO.

        Providers that avoid the machine have a next one until none is left. Others may hand out the same machine again,
        so they are asked for another one once.
        """
        if self._provider.avoids:
            return True
        events = self._store.events(self._record.id)
        earlier = {event.data.get("attempt") for event in events if event.kind == "sick"}
        return not earlier - {self._record.attempt}

    async def _retry(self, attempt: Attempt, end: End) -> None:
        """Makes sure that nothing of the old attempt runs any more, then begins a new one."""
        counts, delay = self._counts(end), self._delay_after(end)
        used = self._record.retries_used + counts
        soon = f" in {wording.duration(delay)}" if delay else ""
        why = f"a new attempt begins{soon}: {end.reason}"
        if end.outcome == messages.GROWING:
            # Nothing has failed that somebody would have to be told of.
            self._journal.step(TaskEvent.DONE)
            self._journal.step(TaskEvent.PROGRESS, why=why)
            self._journal.note(GROWTH, "the ranks have stopped", {growth.GROWN: True})
        else:
            self._journal.step(TaskEvent.FAILURE, why=why)
            reason = self._journal.readable(end.reason)
            notifications.begin(self._paths, notifications.RETRYING, reason)
        unclear = await self._unless_cancelled(attempt.clear())
        beside = {*end.replace, *(unclear or ())}
        self._provisioner.set_aside(beside, attempt.out_of_reach, self._sick(attempt))
        await self._end_unusable()
        await self._sleep(delay)
        if self._cancelled.is_set():
            await self._end_with(attempt, end, "cancelled", "cancelled before the next attempt")
            return
        if spent := self._limits.spent(self._instances()):
            self._capped = True
            await self._end_with(attempt, end, "failed", spent)
            return
        if nothing_left := self._nothing_left():
            self._capped = True
            await self._end_with(attempt, end, "failed", f"{end.reason}; {nothing_left}")
            return
        of = f" of {self._asked.retries.max_retries + 1}" if counts else ""
        why = f"attempt {self._record.attempt + 1}{of} after {end.reason}"
        self._journal.step(TaskEvent.RETRY, why=why, retries_used=used)

    def _counts(self, end: End) -> bool:
        """Whether another attempt after this end uses up a retry."""
        return not (
            end.outcome in _UNCOUNTED or self._spare_takes_over(end) or self._goes_on_without(end)
        )

    def _delay_after(self, end: End) -> float:
        """Seconds to wait before another attempt."""
        if self._counts(end):
            return self._asked.retries.delay_before(self._record.retries_used + 1)
        if self._spare_takes_over(end) or end.outcome in (messages.SICK, messages.GROWING):
            return 0.0
        return self._preemption_pause(end)

    async def _end_unusable(self) -> None:
        """Ends instances that the next attempt cannot use, before the delay. Failures are retried after it."""
        try:
            await self._provisioner.end_unusable(self._record.roster)
        except (ProviderError, OSError) as error:
            say(f"what cannot be used again is ended after the pause: {error}")

    def _preemption_pause(self, end: End) -> float:
        record = self._record
        left = [name for name in record.roster if name not in end.replace]
        if self._asked.is_elastic and len(left) >= self._asked.plan.fewest_instances:
            # No machine has to come, and those that are left are charged.
            return 0.0
        began = record.started_at or clock.now()
        before = record.attempt - 1 - record.retries_used - growth.count(self._store, record.id)
        return pause_after_preemption(max(0, before), clock.now() - began)

    # Limits

    async def _guard(self) -> None:
        """Reports progress and checks the limits: for time as a fallback to the agents, for money as the main check."""
        while True:
            await asyncio.sleep(_GUARD_EVERY)
            try:
                attempt = self._attempt
                self._journal.tell_progress(attempt.sending if attempt is not None else "")
                if self._attempt is not None:
                    self._check_limits(self._attempt)
            except LeaseLost:
                raise
            except StoreError as error:
                say(f"the limits cannot be checked: {error}")

    def _check_limits(self, attempt: Attempt) -> None:
        instances = self._instances() if self._asked.plan.max_cost is not None else []
        left = self._limits.time_left(self._record)
        slack = self._asked.time_to_stop + _DEADLINE_SLACK
        if self._record.started_at is not None and left is not None and left < -slack:
            self._stop_attempt("deadline", self._limits.time_is_over(self._record))
        if self._asked.plan.is_paid:
            self._spent = self._limits.spent(instances)
            if self._spent:
                self._stop_attempt("deadline", self._spent)
                attempt.give_up_collecting()

    def _nothing_left(self, delay: float = 0.0) -> str:
        """Which cap forbids another attempt after a delay; "" if none does."""
        left = self._time_left()
        if left is None or left > delay:
            return ""
        paid = self._limits.paid_seconds(self._instances())
        what = "money" if paid is not None and paid <= delay else "time"
        soon = f" in {wording.duration(delay)}" if delay else ""
        return f"no {what} is left for another attempt{soon}"

    def _answers_beside(self, instances: Sequence[Instance]) -> str:
        """As `Provider.answers_beside`; "" also for nodes that are suspended, which are waited for until a cancel."""
        if not self._cancelled.is_set() and self._provider.is_suspended(instances):
            return ""
        return self._provider.answers_beside(instances)

    def _time_left(self) -> float | None:
        left = self._limits.time_left(self._record, self._instances())
        return None if left is None else max(0.0, left)

    def _money_is_spent(self) -> bool:
        return bool(self._limits.spent(self._instances()))

    def _instances(self) -> list[InstanceRecord]:
        return self._store.instances(self._record.id)

    def _is_waiting(self) -> bool:
        return self._record.state in (State.PENDING, State.PROVISIONING)

    def _cancel(self) -> None:
        if not self._cancelled.is_set():
            self._hear_cancellation()
            with suppress(StoreError):
                self._journal.cancelling()
        self._stop_attempt("cancel", "cancelled")

    def _hear_cancellation(self) -> None:
        self._cancelled_at = clock.monotonic()
        self._cancelled.set()

    def _stop_attempt(self, kind: str, reason: str) -> None:
        """Requests the end of the attempt that runs. A gang that ends does not grow any more."""
        if self._growing is not None:
            self._growing.end()
        if self._attempt is not None:
            self._attempt.stop(kind, reason)

    async def _pause(self, seconds: float) -> None:
        """Sleeps before a retry. Sleeps for the full time also when the task has been cancelled."""
        if self._cancelled.is_set():
            await asyncio.sleep(seconds)
        else:
            await self._sleep(seconds)

    async def _unless_cancelled(self, doing: Coroutine[Any, Any, Value]) -> Value | None:
        """Awaits a coroutine. Returns None if the task is cancelled meanwhile."""
        task = asyncio.create_task(doing)
        try:
            await wait_until(self._cancelled, task)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sleep(self, seconds: float) -> None:
        """Sleeps, or returns early when the task is cancelled."""
        await wait_for_event(self._cancelled, seconds)


def _agent_zip(home: Path) -> tuple[Path, str]:
    with trace.span("build the agent's archive"):
        built = build_agent_zip(home)
    return built.path, built.sha256
