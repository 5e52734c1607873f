"""Keeps the spare machines of a task ready while an attempt runs: brought up, watched, and made good if lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.supervise.process.machines_without_rank import MachinesWithoutRank, each_of

if TYPE_CHECKING:
    from flowlite.provider import Instance
    from flowlite.supervise.process.led_task import LedTask

_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


class Spares(MachinesWithoutRank):
    """The spare machines of one task."""

    def __init__(self, task: LedTask) -> None:
        super().__init__(task, "the spare", "spare")
        self._pause = _PAUSE

    def begin(self) -> None:
        """Begins to keep them, in the background."""
        if self._asked.plan.spares:
            self._begin_to_keep()

    async def _go_on(self) -> None:
        await self._end_given_up()
        await self._make_good()
        await each_of(self._look_after(each) for each in self._provisioner.spares().values())
        self._pause = _PAUSE

    def _on_failure(self, why: str) -> float:
        self._tell(f"a spare is missing: {why}")
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)
        return self._pause

    async def _make_good(self) -> None:
        """Launches as many spares as are missing."""
        missing = self._asked.plan.spares - len(self._provisioner.spares())
        if missing <= 0 or self._fails_everywhere:
            return
        async with self._launching:
            if self._closing.is_set():
                return
            record = self._journal.record
            rows, settled = await self._provisioner.launch_spares(
                record, missing, self._task.agent[0]
            )
            if rows:
                self._record(rows, settled)

    async def _look_after(self, instance: Instance) -> None:
        if name := await self._bring_up_or_probe(instance):
            self._tell(f"{name} is ready to take the rank of a lost node")
