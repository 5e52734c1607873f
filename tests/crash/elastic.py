"""Gangs of 2 to 4 nodes in each cloud, killed before and after every one of their calls.

A season says for how many machines there is room, and what becomes of them. Each is played once without a kill, which
counts its calls. It is then played once for each of them, before its effect and after it: the task ends completed,
nothing is left, and at no call of any of these plays there is more than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from flowlite import TaskConfig
from flowlite.state.store import Store
from tests.crash.cases import AFTER, BEFORE, SEASONS, Fault, Season, first_and_last
from tests.crash.clouds import CLOUDS, QUICK, Cloud
from tests.crash.harness import COMMAND, Home
from tests.crash.reenacting import Reenactment
from tests.crash.simulated import DAY, GOES

FEWEST, MOST = 2, 4
_ZONES = "abcdef"
# Seconds for which more machines are waited for: at Mithril, until after the next auction.
_WAITS = {"aws": 20.0, "mithril": 150.0}
_LOOKS = 0.3
_CANCELS = "cancel_bid"


@dataclass(frozen=True, slots=True)
class Moment:
    """Where an elastic gang is killed."""

    season: str
    cloud: str
    nth: int
    when: str
    action: str = "*"

    def __str__(self) -> str:
        what = "call" if self.action == "*" else self.action
        return f"{self.season}, {self.when} {what} {self.nth} of {self.cloud}"


class ElasticGangs(Reenactment):
    """Plays elastic gangs in one simulation, one after the other."""

    # Whether the gangs of the season that is played grow while they run.
    _grows = False
    # How many calls the last play had made before the gang was asked no more.
    _calls_before = 0

    def config(self, cloud: Cloud) -> TaskConfig:
        return TaskConfig(
            command=COMMAND,
            provider=cloud.name,
            name="elastic",
            num_instances=(FEWEST, MOST),
            settle_seconds=_WAITS[cloud.name],
            heal_seconds=_WAITS[cloud.name],
            grow="checkpoint" if self._grows else "attempt",
            max_run_time_hours=1,
            grace_seconds=1,
        )

    def moments(self, name: str, *, different: bool = False) -> list[Moment]:
        """Every moment of a season at which its task can be killed; plays it once in each cloud to find them.

        Args:
            different: Leave out those at calls between which the same is asked again and again (`first_and_last`).
        """
        found = []
        for cloud in CLOUDS:
            calls = self._play(name, self.cloud(cloud), None)
            chosen = first_and_last(calls) if different else range(len(calls))
            found += [Moment(name, cloud, nth, when) for nth in chosen for when in (BEFORE, AFTER)]
        return found

    def withdrawals(self, name: str) -> list[Moment]:
        """The moments at which Mithril is asked to end a bid since a gang goes on that was asked to stop."""
        calls = self._play(name, self.cloud("mithril"), None)
        first = calls[: self._calls_before + 1].count(_CANCELS)
        return [
            Moment(name, "mithril", nth, when, _CANCELS)
            for nth in range(first, calls.count(_CANCELS))
            for when in (BEFORE, AFTER)
        ]

    def play_moment(self, moment: Moment) -> bool:
        """One gang with one kill."""
        self._play(moment.season, self.cloud(moment.cloud), moment)
        return True

    def _play(self, name: str, cloud: Cloud, moment: Moment | None) -> list[str]:
        """Plays a season, with a kill or without. Returns the actions that were called."""
        season = SEASONS[name]
        if season.grows != self._grows:
            self._grows = season.grows
            self._plans.clear()
        self.world.said.seek(0)
        self.world.said.truncate()
        home = self.submit(cloud)
        cloud.suffer(Fault(), QUICK)
        self._set(season, cloud, home)
        if moment is not None:
            cloud.control.kill_client(moment.action, moment.when, skip=moment.nth)
        before = len(cloud.control.calls)
        try:
            with self._watching(cloud, home) as too_many:
                if not self.world.lead(home.directory, home.task):
                    assert not (left := self._withdrawn_too_early(cloud, home)), left
                self.lead_to_the_end(home)
            assert not too_many, too_many[:3]
            self._check_end(season, cloud, home, exactly=moment is None)
        except Exception as error:
            error.add_note(f"{cloud.name}\n{self.world.said.getvalue()[-3000:]}")
            raise
        finally:
            found = [action for action, _ in cloud.control.calls[before:]]
            self._room(cloud, None)
            self._clear(cloud, home)
        return found

    def _set(self, season: Season, cloud: Cloud, home: Home) -> None:
        self.world.refuses, self.world.given_up_at = season.refuses, None
        self._room(cloud, season.room)
        if season.taken:
            self.world.timeline.after(_LOOKS, lambda: self._take_one(season, cloud, home))
        if season.grows:
            self.world.timeline.after(_LOOKS, lambda: self._give_room(season, cloud, home))
        if season.lost:
            action = "RunInstances" if cloud.name == "aws" else "create_bid"
            cloud.control.fault(action, status=502, code="InternalError", when="after", times=2)

    def _room(self, cloud: Cloud, more: int | None, there: int = 0) -> None:
        """So many machines besides those that are there, all in one zone of EC2; None for no limit."""
        _, plan = self._plans[cloud.name]
        if cloud.name == "aws":
            for zone in _ZONES:
                room = more if zone == "b" or more is None else 0
                self.world.aws.capacity(plan.instance_type, f"us-east-1{zone}", room)
            return
        self.world.mithril.capacity(plan.instance_type, None if more is None else there + more)

    def _give_room(self, season: Season, cloud: Cloud, home: Home) -> None:
        """Has room for one more machine as soon as the ranks of the task run."""
        if not home.directory.exists() or (record := home.record).final:
            return
        if record.state != "running" or record.attempt != 1:
            self.world.timeline.after(_LOOKS, lambda: self._give_room(season, cloud, home))
            return
        self._room(cloud, 1, len(record.roster))

    def _take_one(self, season: Season, cloud: Cloud, home: Home) -> None:
        """Takes a machine away as soon as the ranks of the task run on all of the first attempt."""
        if not home.directory.exists() or (record := home.record).final:
            return
        if record.state != "running" or record.attempt != 1 or len(record.roster) < season.room:
            self.world.timeline.after(_LOOKS, lambda: self._take_one(season, cloud, home))
            return
        if cloud.name == "aws":
            self.world.aws.preempt([record.roster[1]], 0.0)
        else:
            single = next(b for b in self.world.mithril.live_bids() if b["instance_quantity"] == 1)
            self.world.mithril.preempt([single["fid"]], 0.0, again_after=DAY)
        self._room(cloud, season.room_after, len(record.roster) - 1)

    def _check_end(self, season: Season, cloud: Cloud, home: Home, *, exactly: bool) -> None:
        record = home.record
        assert record.state == "completed", home.story()
        assert FEWEST <= len(record.roster) <= MOST
        if exactly:
            assert (record.attempt, len(record.roster)) == (len(season.sizes), season.sizes[-1])
            assert record.retries_used == 0
        self.world.timeline.sleep(5.0)
        assert not cloud.existing(home.task), f"{cloud.existing(home.task)} {home.story()}"

    @contextmanager
    def _watching(self, cloud: Cloud, home: Home) -> Iterator[list[str]]:
        """Notes each call that is made while there is more than the task asked for."""
        found: list[str] = []
        before, self._calls_before = len(cloud.control.calls), 0

        def look() -> None:
            there = self._machines(cloud, home.task)
            since = self.world.given_up_at
            if since is None:
                self._calls_before = len(cloud.control.calls) - before
            over = since is not None and self.world.timeline.now > since + GOES
            if len(there) > (FEWEST if over else MOST):
                found.append(f"at {self.world.timeline.now:.1f} s: {there}")

        self.world.before_each_call = look
        try:
            yield found
        finally:
            self.world.before_each_call = None

    def _withdrawn_too_early(self, cloud: Cloud, home: Home) -> list[str]:
        """Bids that live although the disk of a killed supervisor says that their launch is withdrawn."""
        if cloud.name == "aws":
            return []
        with closing(Store(home.directory / "state.db")) as store:
            over = [each.token for each in store.intents(home.task) if each.state == "undone"]
        bids: list[Any] = self.world.mithril.live_bids()
        return [bid["name"] for bid in bids for token in over if f"-{token}-" in bid["name"]]

    def _machines(self, cloud: Cloud, task: str) -> list[str]:
        """What a task has that is charged, or may be: machines, and those that its bids may still win."""
        if cloud.name == "aws":
            return [
                str(each["id"])
                for each in self.world.aws.instances()
                if each["state"] in ("pending", "running", "stopping")
                and each["tags"].get("flowlite:task") == task
            ]
        bids: list[Any] = self.world.mithril.live_bids()
        mine = [bid for bid in bids if f"-{task}-" in bid["name"]]
        return [str(bid["fid"]) for bid in mine for _ in range(bid["instance_quantity"])]
