"""Failover across three places in both clouds, killed before and after every one of its calls.

A market says what is wrong at the first two places; the third has room. Each market is played once without a kill,
which counts its calls. It is then played twice for each of them, before its effect and after it. If the supervisor is
killed, the task ends completed, and nothing is left. If the client's machine is lost, with FLOW_HOME, nothing is left a
day later. At no call of any of these plays there is something that costs money at two places.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

from flowlite import TaskConfig
from flowlite.api.client import Flow
from flowlite.provider import Candidate, Plan
from flowlite.supervise.cleanup import background_gc
from flowlite.supervise.process import launch
from tests.crash.cases import AFTER, BEFORE, MACHINE, MARKETS, SUPERVISOR, Fault, Market
from tests.crash.clouds import QUICK
from tests.crash.harness import COMMAND, Home
from tests.crash.reenacting import Reenactment

FIRST, SECOND, THIRD = ("aws", "us-east-1"), ("mithril", None), ("aws", "us-east-2")
_ZONES = "abcdef"
_LOOKS = 0.3
# Between the end of the queue's time and the next look at the bid: when the bid is filled after all.
_FILLED_LATE = 121.0


@dataclass(frozen=True, slots=True)
class Point:
    """Where a failover is killed, and who: the supervisor, or the client's whole machine."""

    market: str
    cloud: str
    nth: int
    when: str
    lost: str

    def __str__(self) -> str:
        return f"{self.market}, the {self.lost} {self.when} call {self.nth} of {self.cloud}"


class Markets(Reenactment):
    """Plays failovers in one simulation, one after the other."""

    _killed = False

    def points(self, name: str) -> list[Point]:
        """Every point of a market at which its task can be killed; plays it once to find them."""
        calls = self._play(name, None)
        return [
            Point(name, cloud, nth, when, lost)
            for cloud, count in calls.items()
            for nth in range(count)
            for when in (BEFORE, AFTER)
            for lost in (SUPERVISOR, MACHINE)
        ]

    def play_point(self, point: Point) -> bool:
        """One failover with one kill; whether somebody was killed."""
        self._play(point.market, point)
        return self._killed

    def _play(self, name: str, point: Point | None) -> dict[str, int]:
        market = MARKETS[name]
        self.world.said.seek(0)
        self.world.said.truncate()
        clouds = {each: self.cloud(each) for each in ("aws", "mithril")}
        home = self._submit_to_three()
        for cloud in clouds.values():
            cloud.suffer(Fault(), QUICK)
        self._set(market, home)
        if point is not None:
            clouds[point.cloud].control.kill_client("*", point.when, skip=point.nth)
        before = {each: len(cloud.control.calls) for each, cloud in clouds.items()}
        try:
            with self._watching_places(home) as two_at_once:
                ended = self.world.lead(home.directory, home.task)
                self._killed = not ended
                is_lost = self._killed and point is not None and point.lost == MACHINE
                if is_lost:
                    self._be_gone(home, *clouds.values())
                else:
                    self.lead_to_the_end(home)
            assert not two_at_once, two_at_once[:3]
            if not is_lost:
                self._check_end(market, home, exactly=point is None)
        except Exception as error:
            tried = home.record.tried if home.directory.exists() else "its home is gone"
            error.add_note(f"{tried}\n{self.world.said.getvalue()[-3000:]}")
            raise
        finally:
            found = {each: len(c.control.calls) - before[each] for each, c in clouds.items()}
            kind = self._plans[FIRST].instance_type  # type: ignore[index]
            for zone in _ZONES:
                self.world.aws.capacity(kind, f"us-east-1{zone}", None)
            for cloud in clouds.values():
                self._clear(cloud, home)
        return found

    def _submit_to_three(self) -> Home:
        clouds = [self.cloud(name) for name in ("aws", "mithril")]
        home = self.home(clouds[0])
        (home.directory / "config.toml").write_text("\n".join(each.settings() for each in clouds))
        with mock.patch.dict(os.environ, {"FLOW_HOME": str(home.directory)}):
            candidates = [self._candidate(name, region) for name, region in (FIRST, SECOND, THIRD)]
            for name in ("aws", "mithril"):
                background_gc.remember_paid(home.directory, name)
            config = TaskConfig(
                command=COMMAND,
                name="market",
                max_run_time_hours=1,
                max_wait_hours=2,
                retries=3,
                grace_seconds=1,
            )
            with launch.draft_task(home.directory) as draft:
                record = launch.submit(
                    home.store,
                    draft,
                    name="market",
                    function="true",
                    config=config.to_dict(),
                    plan=candidates[0].plan,
                    call={"kind": "command", "argv": COMMAND},
                    candidates=candidates,
                    supervise=False,
                )
        home.task = record.id
        return home

    def _candidate(self, provider: str, region: str | None) -> Candidate:
        if (provider, region) not in self._plans:
            config = TaskConfig(
                command=COMMAND,
                provider=provider,
                region=region,
                max_run_time_hours=1,
                grace_seconds=1,
            )
            self._plans[provider, region] = plan_of(config)  # type: ignore[index]
        plan = self._plans[provider, region]  # type: ignore[index]
        return Candidate(plan, {"provider": provider, "region": region, "gpu": None, "spot": None})

    def _set(self, market: Market, home: Home) -> None:
        aws, mithril = self.world.aws, self.world.mithril
        plan = self._plans[FIRST]  # type: ignore[index]
        if market.full:
            self._fill_first(plan)
        if market.taken:
            self.world.timeline.after(_LOOKS, lambda: self._take_away(plan, home))
        if market.boots:
            aws.boots(*market.boots)
        mithril.price("*", 1000.0)
        for action in market.lost:
            cloud: Any = mithril if action.islower() else aws
            skip = len(_zones(plan)) if action == "RunInstances" else 0
            cloud.fault(action, status=502, code="InternalError", when="after", skip=skip)
        if market.filled_late:
            self.world.timeline.after(_FILLED_LATE, lambda: _fill(mithril))

    def _fill_first(self, plan: Plan) -> None:
        for zone in _ZONES:
            self.world.aws.capacity(plan.instance_type, f"us-east-1{zone}", 0)

    def _take_away(self, plan: Plan, home: Home) -> None:
        """Cuts the power of the task's machine as soon as its ranks run."""
        if not home.directory.exists() or home.record.final:
            return
        running = [i["id"] for i in self.world.aws.instances() if i["state"] == "running"]
        if not running or home.record.state != "running":
            self.world.timeline.after(_LOOKS, lambda: self._take_away(plan, home))
            return
        self._fill_first(plan)
        for name in running:
            self.world.aws.die(name)

    def _check_end(self, market: Market, home: Home, *, exactly: bool) -> None:
        record = home.record
        assert record.state == "completed", home.story()
        tried = tuple((each["candidate"], each["kind"]) for each in record.tried)
        if exactly:
            assert tried == market.tried, record.tried
            assert (record.candidate, record.provider) == (2, "aws")
        assert all("left_at" in each for each in record.tried)
        self.world.timeline.sleep(5.0)
        for name in ("aws", "mithril"):
            assert not self.cloud(name).existing(home.task), home.story()

    @contextmanager
    def _watching_places(self, home: Home) -> Iterator[list[str]]:
        """Notes each call that is made while there is something at two places."""
        found: list[str] = []

        def look() -> None:
            places = self._places(home.task)
            if len(places) > 1:
                found.append(f"at {self.world.timeline.now:.1f} s: {sorted(places)}")

        self.world.before_each_call = look
        try:
            yield found
        finally:
            self.world.before_each_call = None

    def _places(self, task: str) -> set[str]:
        """Where a task has something that costs money, or may: machines, and bids that have not ended."""
        machines = [
            each
            for each in self.world.aws.instances()
            if each["state"] in ("pending", "running", "stopping")
            and each["tags"].get("flowlite:task") == task
        ]
        bids = [b for b in self.world.mithril.live_bids() if f"-{task}-" in b["name"]]
        return {str(each["zone"])[:-1] for each in machines} | ({"mithril"} if bids else set())


def plan_of(config: TaskConfig) -> Plan:
    """The plan of a task with one place, with the settings frozen in it."""
    _, plan = Flow().plan(config)
    return plan


def _zones(plan: Plan) -> list[Any]:
    return [zone for place in plan.options["places"] for zone in place["zones"]]


def _fill(mithril: Any) -> None:
    with suppress(RuntimeError):
        mithril.price("*", 0.5)
        mithril.auction()
