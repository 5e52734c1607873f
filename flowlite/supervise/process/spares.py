"""Keeps the spare machines of a task ready while an attempt runs: brought up, watched, and made good if lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from flowlite.errors import FlowError, LeaseLost, StoreError
from flowlite.supervise.process.machines_without_rank import MachinesWithoutRank, each_of
from flowlite.supervise.record.lifecycle import TaskEvent
from flowlite.supervise.record.log import say

if TYPE_CHECKING:
    from flowlite.provider import Instance
    from flowlite.supervise.process.led_task import LedTask

_EVERY = 2.0
_LONGEST_PAUSE = 60.0
# Spares that fail one after the other before no more are launched: what fails there would fail everywhere.
_MOST_FAILURES = 3


class Spares:
    """The spare machines of one task, from the start of an attempt to its end. They outlast it."""

    def __init__(self, task: LedTask) -> None:
        self._asked = task.asked
        self._journal = task.journal
        self._provisioner = task.provisioner
        self._agent = task.agent
        self._machines = MachinesWithoutRank(task, "the spare", self._tell)
        self._closing = asyncio.Event()
        self._launching = asyncio.Lock()
        self._told: set[str] = set()
        self._keeping: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begins to keep them, in the background."""
        if self._asked.plan.spares:
            self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stops watching. The machines stay as they are. May be called again."""
        self._closing.set()
        if self._keeping is None:
            return
        # The outcome of a call that launches must be known before anything is ended.
        async with self._launching:
            self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._machines.close()

    async def _keep(self) -> None:
        pause = _EVERY
        while not self._closing.is_set():
            try:
                await self._make_good()
                spares = self._provisioner.spares()
                await each_of(self._look_after(each) for each in spares.values())
                pause = _EVERY
            except LeaseLost:
                return
            except (FlowError, StoreError, OSError) as error:
                self._tell(f"a spare is missing: {error}")
                pause = min(_LONGEST_PAUSE, pause * 2)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()

    async def _make_good(self) -> None:
        """Launches as many spares as are missing."""
        missing = self._asked.plan.spares - len(self._provisioner.spares())
        if missing <= 0 or self._machines.failures >= _MOST_FAILURES:
            return
        async with self._launching:
            if self._closing.is_set():
                return
            record = self._journal.record
            rows, settled = await self._provisioner.launch_spares(record, missing, self._agent[0])
            if rows:
                self._journal.step(
                    TaskEvent.PROGRESS,
                    # It may be another one than before the call.
                    why=self._journal.record.reason,
                    instances=rows,
                    settled=settled,
                )

    async def _look_after(self, instance: Instance) -> None:
        if name := await self._machines.look_after(instance):
            self._tell(f"{name} is ready to take the rank of a lost node")

    def _tell(self, text: str) -> None:
        say(text)
        if text not in self._told:
            self._told.add(text)
            self._journal.note("spare", text)
