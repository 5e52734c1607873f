"""Crash points on a simulated clock: the same cases as those of `harness`, many a second."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from flowlite import TaskConfig
from flowlite.api.adapters import settings_here
from flowlite.api.client import Flow
from flowlite.supervise.cleanup.reconcile import Reconciled, reconcile
from flowlite.supervise.process import launch
from tests.crash.cases import AFTER, BEFORE, BOOT, END, MACHINE, RUN, Case, Fault
from tests.crash.clouds import CLOUDS, QUICK, SLOW, Cloud, MithrilCloud
from tests.crash.harness import LOOKS, PATIENCE, SETTLES, Home, config_of, waits
from tests.crash.simulated import DAY, LATEST_INTERFACES, Simulation

_EVERY = 0.5
# As at Mithril; and in a day in which nobody bids.
_AUCTIONS, AUCTIONS_OF_A_DAY = 120.0, 3600.0
# Hours of a client that comes back to its task again and again.
_LONGEST = 4 * 3600.0
# Of the kills at random: how many are at a call, up to which one; and how many tasks are cancelled afterwards.
_AT_A_CALL, _CALLS = 0.8, 40
_CANCELS = 0.3


class Reenactment:
    """Plays cases in one simulation, one after the other."""

    def __init__(self, world: Simulation, root: Path) -> None:
        self.world = world
        self._root = root
        self._clouds: dict[str, Cloud] = {}
        self._plans: dict[str, Any] = {}
        self._count = 0

    def cloud(self, name: str) -> Cloud:
        """One of the clouds."""
        if name not in self._clouds:
            box: Any = self.world
            cloud: Any = CLOUDS[name](box)
            if isinstance(cloud, MithrilCloud):
                cloud.auction_seconds = _AUCTIONS
            self._clouds[name] = cloud
        return self._clouds[name]

    # A task

    def home(self, cloud: Cloud) -> Home:
        """A fresh FLOW_HOME."""
        self._count += 1
        home = Home(self._root / f"home{self._count}")
        home.directory.mkdir()
        (home.directory / "config.toml").write_text(cloud.settings())
        return home

    def config(self, cloud: Cloud) -> TaskConfig:
        """The task."""
        found: TaskConfig = config_of(cloud.name)
        return found

    def submit(self, cloud: Cloud) -> Home:
        """Records a task; nobody supervises it yet. It is planned once."""
        home = self.home(cloud)
        with mock.patch.dict("os.environ", {"FLOW_HOME": str(home.directory)}):
            if cloud.name not in self._plans:
                self._plans[cloud.name] = Flow().plan(self.config(cloud))
            config, plan = self._plans[cloud.name]
            home.record_task(cloud.name, config, plan)
        return home

    # A case

    def play(self, case: Case, *, then_gc: bool = False) -> bool:
        """One crash and what comes after it; whether the task was hit where it should be.

        Args:
            case: The crash.
            then_gc: Whether `flow gc` comes first, which launches nothing.
        """
        cloud = self.cloud(case.cloud)
        self.world.said.seek(0)
        self.world.said.truncate()
        home = self.submit(cloud)
        try:
            hit = self._crash(cloud, case, home)
            cloud.soothe()
            if case.lost == MACHINE:
                self._be_gone(home, cloud)
            else:
                if then_gc:
                    self._check_gc(cloud, home)
                self._recover(cloud, case, home)
        except Exception as error:
            error.add_note(self.world.said.getvalue()[-3000:])
            raise
        finally:
            self._clear(cloud, home)
        return hit

    def _crash(self, cloud: Cloud, case: Case, home: Home) -> bool:
        boot = QUICK if case.phase == RUN else SLOW[case.lost]
        cloud.suffer(cloud.points.faults[case.fault], boot)
        control = cloud.control
        calls = len(control.calls)

        async def direct() -> None:
            if case.phase == END:
                # As soon as something is asked for, there is something to end.
                await _until(lambda: bool(cloud.existing(home.task)) or waits(home), 60)
                control.kill_client(case.action, case.when, skip=case.nth)
                home.store.request_cancel(home.task)
                await asyncio.sleep(90)
                return
            waiting = 0.0
            patience = PATIENCE if case.action in LOOKS else SETTLES
            while waiting < patience:
                await asyncio.sleep(_EVERY)
                if case.phase == BOOT and (waits(home) or cloud.existing(home.task)):
                    waiting += _EVERY

        if case.phase != END:
            control.kill_client(case.action, case.when, skip=case.nth)
        over = self.world.lead(home.directory, home.task, direct)
        asked = [action for action, _ in control.calls[calls:]]
        return not over and bool(asked) and asked[-1] == case.action

    def _recover(self, cloud: Cloud, case: Case, home: Home) -> None:
        """A client that waits for the task, which is all that it needs to come to its end."""
        if case.phase == BOOT:
            self._do(home, lambda: launch.cancel(home.store, home.directory, home.task))
        self.lead_to_the_end(home)
        # Machines take a moment to go after their bid.
        self.world.timeline.sleep(5.0)
        assert not cloud.existing(home.task), home.story()
        # What costs nothing is left to the tidying up that every command starts now and then.
        for pause in (0.0, 60.0):
            self.world.timeline.sleep(pause)
            if left := cloud.left_over(home.task):
                self.gc(home)
        assert not cloud.left_over(home.task), f"{left} {home.story()}"

    def lead_to_the_end(self, home: Home) -> None:
        """A client that comes back to its task again and again."""
        until = self.world.timeline.now + _LONGEST
        while not home.record.final:
            assert self.world.timeline.now < until, home.story()
            self._do(
                home,
                lambda: launch.ensure_supervisors(home.store, home.directory, only=home.task),
            )
            self.world.timeline.sleep(1.0)

    def _check_gc(self, cloud: Cloud, home: Home) -> None:
        """Runs `flow gc`, and the supervisors that it starts, to their ends."""
        launches = cloud.launches()
        self.gc(home)
        assert cloud.launches() == launches, f"`flow gc` launched something {home.story()}"
        waits = not home.record.final and not cloud.existing(home.task)
        assert home.record.final or waits, home.story()

    def _be_gone(self, home: Home, *clouds: Cloud) -> None:
        """The client's machine never comes back, and a day goes by."""
        shutil.rmtree(home.directory)
        self.world.mithril.rules(auction_seconds=AUCTIONS_OF_A_DAY)
        self.world.timeline.sleep(DAY)
        for cloud in clouds:
            if cloud.existing(home.task) and cloud.needs_gc:
                other = self.home(cloud)
                self.gc(other, all_homes=True)
                self.world.timeline.sleep(60.0)
                shutil.rmtree(other.directory)
            assert not cloud.existing(home.task)

    # Kills at any moment

    def kill_at_random(self, seed: int) -> None:
        """A task in a cloud at its unkindest, killed up to three times, and one `flow gc` after that.

        Nothing that costs money is left then, and `flow gc` has launched nothing. Groups, which cost nothing, may
        outlast it as long as EC2 refuses to delete them; the next one takes them away.
        """
        chance = random.Random(seed)
        cloud = self.cloud(chance.choice(list(CLOUDS)))
        home = self.submit(cloud)
        try:
            cloud.suffer(Fault(), chance.choice((QUICK, 5.0, 40.0)))
            self.world.be_unkind(seed, chance)
            for _ in range(chance.choice((1, 1, 2, 3))):
                self._kill_once(cloud, home, chance)
                if home.record.final:
                    break
            if chance.random() < _CANCELS:
                home.store.request_cancel(home.task)
            launches = cloud.launches()
            self.gc(home)
            assert cloud.launches() == launches, f"`flow gc` launched something {home.story()}"
            self.world.be_kind()
            self.world.timeline.sleep(60.0)
            assert not cloud.existing(home.task), f"{cloud.existing(home.task)} {home.story()}"
            self.world.timeline.sleep(LATEST_INTERFACES)
            self._do(home, lambda: launch.cancel(home.store, home.directory, home.task))
            self.gc(home)
            assert not cloud.left_over(home.task), f"{cloud.left_over(home.task)} {home.story()}"
        except Exception as error:
            error.add_note(f"seed {seed}, {cloud.name}\n{self.world.said.getvalue()[-3000:]}")
            raise
        finally:
            self.world.be_kind()
            self._clear(cloud, home)

    def _kill_once(self, cloud: Cloud, home: Home, chance: random.Random) -> None:
        seconds = chance.uniform(0.0, 90.0)

        async def wait() -> None:
            await asyncio.sleep(seconds)

        if chance.random() < _AT_A_CALL:
            when = chance.choice((BEFORE, AFTER))
            cloud.control.kill_client("*", when, skip=chance.randrange(_CALLS))
        self.world.lead(home.directory, home.task, wait)
        cloud.control.clear_faults()
        self.world.timeline.sleep(chance.choice((0.0, 3.0, 100.0, 1000.0)))

    def _clear(self, cloud: Cloud, home: Home) -> None:
        cloud.soothe()
        shutil.rmtree(home.directory, ignore_errors=True)
        self.world.forget()

    def gc(self, home: Home, *, all_homes: bool = False) -> Reconciled:
        """`flow gc`."""
        found: Reconciled = self._do(
            home,
            lambda: reconcile(
                home.store,
                home.directory,
                here=settings_here,
                all_homes=all_homes,
                unknown=all_homes,
            ),
        )
        return found

    def _do(self, home: Home, do: Callable[[], Any]) -> Any:
        return self.world.command(home.directory, do)

    def uneventful(self, cloud: Cloud) -> set[str]:
        """The calls of a task to which nothing happens, from its intent to its end."""
        home = self.submit(cloud)
        cloud.suffer(Fault(), QUICK)
        before = len(cloud.control.calls)
        self.world.lead(home.directory, home.task)
        assert home.record.state == "completed", home.story() + self.world.said.getvalue()
        shutil.rmtree(home.directory)
        return {action for action, _ in cloud.control.calls[before:]}


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    for _ in range(int(seconds / _EVERY)):
        if condition():
            return
        await asyncio.sleep(_EVERY)
