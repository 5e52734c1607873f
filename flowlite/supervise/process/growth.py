"""Lets a gang grow while it runs: asks for the nodes that it lacks, brings them up beside it, and has it stop for them.

Every step is in the store before the next: the intent to launch, then the machines' rows, whose state is "joining".
A supervisor that takes over goes on from there. The next attempt takes all machines that join
(`Provisioner.complete`), whatever has ended this one. `supervise/gang_growth.py` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flowlite.errors import CapacityUnavailable
from flowlite.provider import Instance, LaunchPending
from flowlite.state import clock
from flowlite.supervise.gang_growth import GIVE_UP_SECONDS, GrowthState, GrowthStep
from flowlite.supervise.process.machines_without_rank import MachinesWithoutRank, each_of
from flowlite.supervise.record import lifecycle, wording
from flowlite.supervise.record.lifecycle import JOINING
from flowlite.supervise.record.log import say

if TYPE_CHECKING:
    from flowlite.state.store import Store, TaskRecord
    from flowlite.supervise.process.led_task import LedTask
    from flowlite.supervise.record.task_view import TaskView

GROWTH = "growth"
"""Kind of the entries of a task's history that tell of it."""
# Whether the ranks were asked to stop, and whether they are asked no more, in the data of such an entry.
_ASKED, _GIVEN_UP = "asked", "given_up"
GROWN = "grown"
"""Whether the attempt has ended for it, in the data of such an entry."""
# Seconds until a launch is looked at again, or what has failed is tried again.
_EVERY = 2.0
# Seconds between two requests for nodes, which grow: where nodes are free, and where they are charged.
_PAUSES, _PAID_PAUSES = (5.0, 60.0), (30.0, 300.0)
_SLOWER = 1.5
# Seconds after the start of the ranks until it is said that they cannot be asked to stop.
_PATIENCE = 30.0


def count(store: Store, task_id: str) -> int:
    """How many attempts of a task have ended so that it grows."""
    events = store.events(task_id)
    return sum(event.kind == GROWTH and bool(event.data.get(GROWN)) for event in events)


def was_asked(store: Store, record: TaskRecord, asked: TaskView) -> bool:
    """Whether the ranks of the present attempt of a task were asked to stop so that it grows."""
    if not asked.grows_at_checkpoints or len(record.roster) >= asked.plan.num_instances:
        return False
    if any(row.state == JOINING and row.ended_at is None for row in store.instances(record.id)):
        return True
    return any(
        event.kind == GROWTH and event.data.get(_ASKED) and event.data["attempt"] == record.attempt
        for event in store.events(record.id)
    )


class Growth(MachinesWithoutRank):
    """The growth of one gang, from the start of an attempt to its end. The next attempt takes the machines."""

    def __init__(self, task: LedTask, ask: Callable[[str], None]) -> None:
        """
        Args:
            ask: Has the ranks asked to stop, with the reason; with "" no more.
        """
        super().__init__(task, "the new node", GROWTH)
        self._ask = ask
        self._stoppable = False
        self._told_to_stop = False
        self._ending = False
        # A supervisor before this one may have been killed before everything was ended that it had withdrawn.
        self._is_clean = False
        self._coming = False
        self._given_up = False
        self._ran_since: float | None = None
        self._ready_at = 0.0
        self._asked_at: float | None = None
        self._pause, self._longest_pause = _PAID_PAUSES if task.asked.plan.is_paid else _PAUSES
        self._first_pause = self._pause
        self._launch_at = clock.monotonic() + self._pause

    def begin(self) -> None:
        """Begins, in the background, if the gang may grow."""
        wanted = self._asked.grows_at_checkpoints and self._asked.is_elastic
        if wanted and len(self._journal.record.roster) < self._asked.plan.num_instances:
            self._given_up = self._journal.noted(GROWTH, _GIVEN_UP)
            self._begin_to_keep()

    def heard(self, event: Mapping[str, Any]) -> None:
        """Handles an event of the gang."""
        kind = event["kind"]
        if kind == "stoppable":
            self._stoppable = True
        elif kind == "should_stop":
            self._told_to_stop = True
            # The time that new nodes wait for the workers to end begins here, whoever asked for the stop.
            self._asked_at = clock.monotonic() if self._asked_at is None else self._asked_at
        elif kind in ("preempting", "stopping", "ended"):
            self._ending = True

    def end(self) -> None:
        """The attempt is being ended: it asks for no more nodes, and for nobody to stop."""
        self._ending = True

    def _on_failure(self, why: str) -> float:
        self._tell(f"no more nodes{'' if self._is_broken else ' yet'}: {why}")
        self._given_up = self._given_up or self._is_broken
        self._ask_later()
        return _EVERY

    async def _go_on(self) -> None:
        await self._end_given_up()
        joining = self._provisioner.joining()
        await each_of(self._look_after(each) for each in joining.values())
        joining = self._provisioner.joining()
        self._say_if_not_stoppable()
        step = self._state(joining).next_step()
        if step is GrowthStep.LAUNCH:
            await self._launch(len(joining))
        elif step is GrowthStep.WITHDRAW:
            await self._withdraw()
        elif step is GrowthStep.ASK:
            self._begin_to_ask(len(joining))
        elif step is GrowthStep.ASK_NO_MORE:
            self._asked_at = None
            self._ask("")
        elif step is GrowthStep.GIVE_UP:
            await self._give_up(list(joining.values()))
        if not self._is_clean:
            async with self._launching:
                roster = self._journal.record.roster
                self._is_clean = await self._provisioner.end_left_over(roster)

    def _state(self, joining: Mapping[str, Instance]) -> GrowthState:
        now = clock.monotonic()
        record = self._journal.record
        asked_at = self._asked_at
        lacking = self._asked.plan.num_instances - len(record.roster) - len(joining)
        return GrowthState(
            size=len(record.roster),
            most=self._asked.plan.num_instances,
            joining=len(joining),
            ready=len(self.ready.intersection(joining)),
            stoppable=self._stoppable and self._journal.has_started,
            leaving=self._leaving,
            told=self._told_to_stop,
            ending=self._ending,
            is_open=self._provisioner.is_joining(),
            coming=self._coming,
            settled=now - self._ready_at,
            settle_seconds=self._asked.settle_seconds,
            asked_for=None if asked_at is None else now - asked_at,
            # The new nodes have rows, and are counted.
            seconds_left=self._provisioner.seconds_with(record, 0),
            seconds_with_all=self._provisioner.seconds_with(record, max(1, lacking)),
            is_due=now >= self._launch_at,
            over=self._given_up or self._fails_everywhere,
            given_up=self._given_up,
        )

    async def _look_after(self, instance: Instance) -> None:
        if name := await self._bring_up_or_probe(instance):
            self._ready_at = clock.monotonic()
            self._tell(f"{name} is ready")

    async def _launch(self, joining: int) -> None:
        """Asks once for the nodes that are lacking."""
        record = self._journal.record
        lacking = self._asked.plan.num_instances - len(record.roster) - joining
        async with self._launching:
            if self._closing.is_set():
                return
            self._coming = False
            try:
                rows, settled = await self._provisioner.launch_joining(
                    record, lacking, self._task.agent[0]
                )
            except LaunchPending as error:
                say(f"more nodes may come: {error}")
                self._coming = not error.queued
                # A job may be queued for days, and a machine that boots is charged.
                least = self._first_pause if error.queued else _EVERY
                self._launch_at = clock.monotonic() + max(least, error.retry_after)
                return
            except CapacityUnavailable as error:
                say(f"no room for more nodes: {error}")
                self._ask_later()
                return
            self._record(rows, settled)
        self._launch_at = clock.monotonic() + self._pause
        self._came_together([row.id for row in rows])
        self._tell(
            f"there is room for {lifecycle.nodes(len(rows))} more, brought up beside the gang"
        )

    async def _withdraw(self) -> None:
        """Ends the launch that is open, since it brings nothing more of use. It is called until that is done."""
        async with self._launching:
            self._coming, self._is_clean = False, False
            done = await self._provisioner.withdraw_joining(self._journal.record.roster)
        if done:
            say("no more nodes are waited for")

    def _ask_later(self) -> None:
        self._launch_at = clock.monotonic() + self._pause
        self._pause = min(self._longest_pause, self._pause * _SLOWER)

    def _begin_to_ask(self, joining: int) -> None:
        size = len(self._journal.record.roster)
        self._asked_at = clock.monotonic()
        text = (
            f"the ranks are asked to stop, so that the gang grows from {size} to "
            f"{lifecycle.nodes(size + joining)}"
        )
        # In the store before anybody is asked: a leader that says it was is believed only then.
        say(text)
        self._journal.note(GROWTH, text, {_ASKED: True})
        self._ask(f"the gang grows from {size} to {lifecycle.nodes(size + joining)}")

    async def _give_up(self, joining: list[Instance]) -> None:
        """Gives the new nodes back, since the ranks have not stopped for them."""
        if self._given_up:
            # A supervisor before this one was killed meanwhile, or they came late.
            await self._return(joining)
            return
        now = clock.monotonic()
        waited = now - (now if self._asked_at is None else self._asked_at)
        why = "little of the time and the money is left, computed with them"
        if waited >= GIVE_UP_SECONDS:
            why = f"its ranks have not stopped within {wording.duration(waited)}"
        self._asked_at, self._given_up = None, True
        text = f"the new nodes are given back, and this attempt goes on as it is: {why}"
        say(text)
        self._journal.note(GROWTH, text, {_GIVEN_UP: True})
        self._ask("")
        await self._return(joining)

    async def _return(self, joining: list[Instance]) -> None:
        for each in joining:
            self._forget(each)
        await self._provisioner.give_back(joining)

    def _say_if_not_stoppable(self) -> None:
        if self._stoppable or not self._journal.has_started:
            return
        self._ran_since = self._ran_since or clock.monotonic()
        if clock.monotonic() - self._ran_since >= _PATIENCE:
            size, most = len(self._journal.record.roster), self._asked.plan.num_instances
            self._tell(
                f"the gang goes on with {size} of {lifecycle.nodes(most)} until its next attempt: no process calls "
                "should_stop() or listens for SIGUSR2, so that it cannot be asked to stop"
            )
