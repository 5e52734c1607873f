"""Machines handed from one task of a sweep to the next, with a kill before each thing that is done meanwhile.

Two tasks run one after the other, and the second takes over the first one's machines, unless something happens to them
between the two. Played once without a kill, this counts the steps: the writes to the store and to the ledger, the calls
to the cloud, and what the machines are told. It is then played for each of them, as if the supervisor, the program that
runs the sweep, or the client's whole machine, were lost just before it. If it is not the machine, both tasks end
completed, and nothing is left once the sweep has ended, or once nobody has ended it for as long as the machines are
kept. It is also played for each of them as if the sweep were cancelled then, which ends all at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from flowlite import TaskConfig
from flowlite.api.client import Flow
from flowlite.errors import NodeUnreachable
from flowlite.provider import Plan
from flowlite.state import clock
from flowlite.state.database import Database
from flowlite.state.store import InstanceRecord
from flowlite.supervise.cleanup.warm_nodes import end_warm_nodes
from flowlite.supervise.money.cost import cost_of
from provider_adapters.rented import machine_hand_over
from provider_adapters.rented.ledger import Launch, Ledger
from tests.crash.cases import BETWEEN, DEAD, MACHINE, NOTHING, SUPERVISOR, TAKEN, Fault
from tests.crash.clouds import QUICK, Cloud
from tests.crash.harness import Home, config_of
from tests.crash.reenacting import AUCTIONS_OF_A_DAY, Reenactment
from tests.crash.simulated import DAY, Crash

_POOL, _KEPT, _NODES = "sweep", 120.0, 2
_LONGEST_LEASE = 300.0
ENDED, FORGOTTEN = "ended", "forgotten"
PROGRAM, SWEEP = "program", "whole sweep, cancelled,"


@dataclass(frozen=True, slots=True)
class Moment:
    """Before which step a hand-over is killed, who is lost, and what happens besides.

    Attributes:
        cloud: "aws" or "mithril".
        nth: Number of the step; None if nobody is killed.
        lost: The supervisor, the client's whole machine, the sweep, which is cancelled, or the sweep's program while it
            ends what is kept. The steps of the last are counted by themselves.
        then: Whether the sweep's end ends what is kept, or nobody does.
        between: What happens to the machines while they are kept.
    """

    cloud: str
    nth: int | None = None
    lost: str = SUPERVISOR
    then: str = ENDED
    between: str = NOTHING

    def __str__(self) -> str:
        return (
            f"a hand-over on {self.cloud}, the {self.lost} before step {self.nth}, {self.between}, "
            f"the sweep {self.then}"
        )


class HandOvers(Reenactment):
    """Plays hand-overs in one simulation, one after the other."""

    _moment = Moment("aws")
    _killed = False
    # Whether the sweep's program ends what is kept, now.
    _ending = False

    def moments(self, cloud: str) -> list[Moment]:
        """Every moment at which a hand-over can be killed; plays it to find them."""
        found: list[Moment] = []
        for between in BETWEEN[cloud]:
            for then in (ENDED, FORGOTTEN) if between == NOTHING else (ENDED,):
                plain = Moment(cloud, then=then, between=between)
                self.play_moment(plain)
                found += [dataclasses.replace(plain, nth=n) for n in range(self._steps[False])]
                ends = range(self._steps[True])
                found += [dataclasses.replace(plain, nth=n, lost=PROGRAM) for n in ends]
        steps = range(sum(each == Moment(cloud, each.nth) for each in found))
        found += [Moment(cloud, n, MACHINE, FORGOTTEN) for n in steps]
        return found + [Moment(cloud, n, SWEEP) for n in steps]

    def play_moment(self, moment: Moment) -> bool:
        """One hand-over with one kill; whether somebody was killed."""
        cloud = self.cloud(moment.cloud)
        self.world.said.seek(0)
        self.world.said.truncate()
        self._moment, self._killed, self._ending = moment, False, False
        # How many there were, by whether the sweep's program did them.
        self._steps = {False: 0, True: 0}
        self._finds_kept = False
        cloud.suffer(Fault(), QUICK)
        charged_before = self._bill()
        home = self._home = self.home(cloud)
        tasks: list[str] = []
        try:
            with self._machines(), self._counting():
                for _ in range(2):
                    if tasks:
                        self._happen(cloud)
                    tasks.append(self._submit(home))
                    self.world.lead(home.directory, home.task)
                    if self._killed and moment.lost == MACHINE:
                        self._abandon(home, cloud, needs_gc=cloud.needs_gc and len(tasks) == 1)
                        return True
                    self.lead_to_the_end(home)
                    if self._killed and moment.lost == SWEEP:
                        self._check_cancelled(home)
                        return True
                self._end(home)
                self._check(home, tasks, charged_before)
        except Exception as error:
            error.add_note(self.world.said.getvalue()[-3000:])
            raise
        finally:
            self._clear(cloud, home)
        return self._killed

    def _happen(self, cloud: Cloud) -> None:
        """What happens between the two tasks."""
        if self._moment.between == DEAD:
            for name in self._alive()[:1]:
                cloud.control.die(name)
        elif self._moment.between == TAKEN:
            for bid in self.world.mithril.live_bids():
                self.world.mithril.preempt([bid["fid"]], 0.0, again_after=DAY)
            self.world.timeline.sleep(5.0)

    def _abandon(self, home: Home, cloud: Cloud, *, needs_gc: bool) -> None:
        """The client's machine never comes back, and a day goes by."""
        shutil.rmtree(home.directory)
        self.world.mithril.rules(auction_seconds=AUCTIONS_OF_A_DAY)
        self.world.timeline.sleep(DAY)
        if needs_gc and self._alive():
            other = self.home(cloud)
            self.gc(other, all_homes=True)
            self.world.timeline.sleep(60.0)
            shutil.rmtree(other.directory)
        self._check_nothing_runs()

    def _cancel(self) -> None:
        """The sweep's program cancels the task that runs, and then looks for what is kept."""
        store = self._home.store
        store.request_cancel(self._home.task)
        self._finds_kept = bool(store.warm_instances(clock.now(self._home.directory)))

    def _check_cancelled(self, home: Home) -> None:
        if self._finds_kept:
            # It has waited for a supervisor that works on the same launch.
            _, problems = end_warm_nodes(home.store, home.directory, pool=_POOL)
            assert not problems
        self.world.timeline.sleep(_KEPT / 2)
        self._check_nothing_runs()

    def _submit(self, home: Home) -> str:
        with mock.patch.dict(os.environ, {"FLOW_HOME": str(home.directory)}):
            config, plan = self._planned()
            home.record_task(self._moment.cloud, config, plan)
        return home.task

    def _planned(self) -> tuple[TaskConfig, Plan]:
        name = f"kept on {self._moment.cloud}"
        if name not in self._plans:
            changes: dict[str, Any] = {"num_instances": _NODES, "keep_warm": _KEPT}
            config, plan = Flow().plan(config_of(self._moment.cloud).replace(**changes))
            options = {**plan.options, "pool": _POOL}
            self._plans[name] = config, dataclasses.replace(plan, options=options)
        found: tuple[TaskConfig, Plan] = self._plans[name]
        return found

    def _end(self, home: Home) -> None:
        over = 60.0
        if self._moment.then == ENDED:
            self._ending = True
            with suppress(Crash):
                _, problems = end_warm_nodes(home.store, home.directory, pool=_POOL)
                assert not problems
            self._ending = False
            over += _KEPT if self._moment.lost == PROGRAM else 0.0
        else:
            # What was taken over and then not used has the lease of a machine with an agent.
            over += _KEPT if not self._killed else _LONGEST_LEASE
        self.world.timeline.sleep(over)
        self._check_nothing_runs()

    def _check_nothing_runs(self) -> None:
        assert not self._alive(), self._alive()
        assert not self.world.mithril.live_bids(), self.world.mithril.live_bids()

    def _alive(self) -> list[str]:
        """The ids of the machines that run or are charged."""
        going = ("terminated", "shutting-down")
        aws = [each["id"] for each in self.world.aws.instances() if each["state"] not in going]
        listed = self.world.mithril.instances()
        return aws + [each["id"] for each in listed if each["there"] or each["charged"]]

    def _check(self, home: Home, tasks: list[str], charged_before: float) -> None:
        for task in tasks:
            home.task = task
            assert home.record.state == "completed", home.story()
        if self._moment.nth is None:
            gangs = 1 if self._moment.between == NOTHING else 2
            control = self.cloud(self._moment.cloud).control
            assert len(control.instances()) == gangs * _NODES, control.instances()
        rows = home.store.instances()
        by_machine: dict[str, list[InstanceRecord]] = {}
        for row in rows:
            assert row.ended_at is not None, rows
            by_machine.setdefault(row.id.partition("@")[0], []).append(row)
        for shared in by_machine.values():
            times = sorted((row.launched_at, row.ended_at or 0.0) for row in shared)
            pairs = itertools.pairwise(times)
            assert all(before[1] <= after[0] + 1e-6 for before, after in pairs), rows
        if self._moment == Moment(self._moment.cloud):
            charged = self._bill() - charged_before
            found = cost_of(rows, max(row.ended_at or 0.0 for row in rows))
            assert abs(found - charged) < 0.01 * charged, (found, charged, rows)

    def _bill(self) -> float:
        """What the clouds charge for all of it."""
        aws = sum(each["instance"] + each["extras"] for each in self.world.aws.bill())
        mithril: float = sum(each["dollars"] for each in self.world.mithril.bill())
        return aws + mithril

    @contextmanager
    def _machines(self) -> Iterator[None]:
        """The machines do what they are told between two tasks."""

        def renew(name: Any, seconds: float) -> None:
            self._before_step()
            host = self.world.machines.host(str(name))
            if host is None:
                raise NodeUnreachable(f"{name} does not answer")
            host.renew(seconds)

        def keep(name: Any, data: Any, agent: Path, task: str, seconds: float, notice: str) -> None:
            renew(name, seconds)
            # It would look at its lease only when the longer one ends that it had before.
            host = self.world.machines.host(str(name))
            if host is not None:
                self.world.timeline.after(seconds, host.watch)

        def take(name: Any, lease: float, longest: float | None) -> None:
            renew(name, lease)

        def find_agent(home: Path, path: Path | None) -> Any:
            return SimpleNamespace(path=home / "agent.pyz")

        with (
            mock.patch.object(machine_hand_over, "keep", keep),
            mock.patch.object(machine_hand_over, "take", take),
            mock.patch.object(machine_hand_over, "find_agent", find_agent),
        ):
            yield

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Counts the steps, and kills whoever is asked for before that one."""
        write, write_launch = Database.write, Ledger._write

        def of_store(database: Database) -> Any:
            self._before_step()
            return write(database)

        def of_ledger(ledger: Ledger, launch: Launch) -> Launch:
            self._before_step()
            return write_launch(ledger, launch)

        self.world.before_each_call = self._before_step
        try:
            with (
                mock.patch.object(Database, "write", of_store),
                mock.patch.object(Ledger, "_write", of_ledger),
            ):
                yield
        finally:
            self.world.before_each_call = None

    def _before_step(self) -> None:
        if self.world.dead:
            raise Crash
        if not (self.world.leads or self._ending):
            return
        self._steps[self._ending] += 1
        is_of_it = self._ending == (self._moment.lost == PROGRAM)
        if is_of_it and self._steps[self._ending] - 1 == self._moment.nth:
            self._killed = True
            if self._moment.lost == SWEEP:
                self._cancel()
            else:
                self.world.kill()
