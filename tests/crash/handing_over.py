"""Machines handed from one task of a sweep to the next, with a kill before each thing that is written down meanwhile.

Two tasks run one after the other, and the second takes over the first one's machines. Played once without a kill, this
counts the writes to the store and to the ledger. It is then played for each of them, as if the supervisor, or the
client's whole machine, were lost just before it. If it is the supervisor, both tasks end completed, and nothing is left
once the sweep has ended, or once nobody has ended it for as long as the machines are kept.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from flowlite import TaskConfig
from flowlite.api.client import Flow
from flowlite.errors import NodeUnreachable
from flowlite.provider import Plan
from flowlite.state.database import Database
from flowlite.state.store import InstanceRecord
from flowlite.supervise.cleanup.warm_nodes import end_warm_nodes
from provider_adapters.rented import machine_hand_over
from provider_adapters.rented.ledger import Launch, Ledger
from tests.crash.cases import MACHINE, SUPERVISOR, Fault
from tests.crash.clouds import QUICK
from tests.crash.harness import Home, config_of
from tests.crash.reenacting import Reenactment
from tests.crash.simulated import LEASE
from tests.helpers import put_agent

_POOL, _KEPT, _NODES = "sweep", 120.0, 2
ENDED, FORGOTTEN = "ended", "forgotten"


@dataclass(frozen=True, slots=True)
class Moment:
    """Before which write a hand-over is killed, who is lost, and whether the sweep is ended afterwards.

    Attributes:
        nth: Number of the write.
        lost: The supervisor, or the client's whole machine.
        then: Whether the sweep's end ends what is kept, or nobody does.
    """

    nth: int
    lost: str
    then: str

    def __str__(self) -> str:
        return f"a hand-over, the {self.lost} before write {self.nth}, the sweep {self.then}"


class HandOvers(Reenactment):
    """Plays hand-overs in one simulation, one after the other."""

    _writes = 0
    _kill_at: int | None = None
    _killed = False

    def moments(self) -> list[Moment]:
        """Every moment at which a hand-over can be killed; plays it once to find them."""
        for then in (ENDED, FORGOTTEN):
            self._play(None, then)
        found = [Moment(n, SUPERVISOR, t) for n in range(self._writes) for t in (ENDED, FORGOTTEN)]
        return found + [Moment(n, MACHINE, FORGOTTEN) for n in range(self._writes)]

    def play_moment(self, moment: Moment) -> bool:
        """One hand-over with one kill; whether somebody was killed."""
        self._play(moment, moment.then)
        return self._killed

    def _play(self, moment: Moment | None, then: str) -> None:
        cloud = self.cloud("aws")
        self.world.said.seek(0)
        self.world.said.truncate()
        self._writes, self._killed = 0, False
        self._kill_at = None if moment is None else moment.nth
        cloud.suffer(Fault(), QUICK)
        home = self.home(cloud)
        put_agent(home.directory)
        tasks: list[str] = []
        try:
            with self._machines(), self._counting():
                for _ in range(2):
                    tasks.append(self._submit(home))
                    self.world.lead(home.directory, home.task)
                    if self._killed and moment is not None and moment.lost == MACHINE:
                        self._be_gone(home, cloud)
                        self._check_nothing_runs()
                        return
                    self.lead_to_the_end(home)
                self._end(home, then)
                self._check(home, tasks, exactly=moment is None)
        except Exception as error:
            error.add_note(self.world.said.getvalue()[-3000:])
            raise
        finally:
            self._clear(cloud, home)

    def _submit(self, home: Home) -> str:
        with mock.patch.dict(os.environ, {"FLOW_HOME": str(home.directory)}):
            config, plan = self._planned()
            home.record_task("aws", config, plan)
        return home.task

    def _planned(self) -> tuple[TaskConfig, Plan]:
        if "kept" not in self._plans:
            changes: dict[str, Any] = {"num_instances": _NODES, "keep_warm": _KEPT}
            config, plan = Flow().plan(config_of("aws").replace(**changes))
            options = {**plan.options, "pool": _POOL}
            self._plans["kept"] = config, dataclasses.replace(plan, options=options)
        found: tuple[TaskConfig, Plan] = self._plans["kept"]
        return found

    def _end(self, home: Home, then: str) -> None:
        if then == ENDED:
            _, problems = end_warm_nodes(home.store, home.directory, pool=_POOL)
            assert not problems
            self.world.timeline.sleep(60.0)
        else:
            # What was taken over and then not used has the lease of a machine with an agent.
            self.world.timeline.sleep((_KEPT if not self._killed else LEASE) + 60.0)
        self._check_nothing_runs()

    def _check_nothing_runs(self) -> None:
        states = {each["id"]: each["state"] for each in self.world.aws.instances()}
        assert set(states.values()) <= {"terminated", "shutting-down"}, states

    def _check(self, home: Home, tasks: list[str], *, exactly: bool) -> None:
        for task in tasks:
            home.task = task
            assert home.record.state == "completed", home.story()
        if exactly:
            assert len(self.world.aws.instances()) == _NODES, self.world.aws.instances()
        rows = home.store.instances()
        by_machine: dict[str, list[InstanceRecord]] = {}
        for row in rows:
            assert row.ended_at is not None, rows
            by_machine.setdefault(row.id.partition("@")[0], []).append(row)
        for shared in by_machine.values():
            times = sorted((row.launched_at, row.ended_at or 0.0) for row in shared)
            pairs = itertools.pairwise(times)
            assert all(before[1] <= after[0] + 1e-6 for before, after in pairs), rows

    @contextmanager
    def _machines(self) -> Iterator[None]:
        """The machines do what they are told between two tasks."""

        def renew(name: Any, seconds: float) -> None:
            host = self.world.machines.host(str(name))
            if host is None:
                raise NodeUnreachable(f"{name} does not answer")
            host.renew(seconds)

        def keep(name: Any, data: Any, agent: Path, task: str, seconds: float) -> None:
            renew(name, seconds)
            # It would look at its lease only when the longer one ends that it had before.
            host = self.world.machines.host(str(name))
            if host is not None:
                self.world.timeline.after(seconds, host.watch)

        def take(name: Any, lease: float, longest: float | None) -> None:
            renew(name, lease)

        with (
            mock.patch.object(machine_hand_over, "keep", keep),
            mock.patch.object(machine_hand_over, "take", take),
        ):
            yield

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Counts the writes of supervisors, and kills the one before which it is asked for."""
        write, write_launch = Database.write, Ledger._write

        def of_store(database: Database) -> Any:
            self._before_write()
            return write(database)

        def of_ledger(ledger: Ledger, launch: Launch) -> Launch:
            self._before_write()
            return write_launch(ledger, launch)

        with (
            mock.patch.object(Database, "write", of_store),
            mock.patch.object(Ledger, "_write", of_ledger),
        ):
            yield

    def _before_write(self) -> None:
        if not self.world.leads:
            return
        self.world.check_alive()
        self._writes += 1
        if self._writes - 1 == self._kill_at:
            self._killed = True
            self.world.kill()
