"""Gangs that shrink and grow: an attempt begins with as many nodes as there are, between the fewest and the most."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.api.candidates.capped_plan import capped_plan
from flowlite.connect.base import Connection
from flowlite.errors import CapacityUnavailable, ConfigError, ProviderError, QuotaExceeded
from flowlite.provider import Instance, LaunchIntent, LaunchPending, NodeSettings, Plan, Provider
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig
from flowlite.state import clock
from flowlite.state.store import Lease, Store
from flowlite.supervise.gang_size import LackingNodes
from flowlite.supervise.money import price_text
from flowlite.supervise.provision import GangNodes, LaunchRefused, Provisioner
from flowlite.supervise.queue.turn import Turn
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from tests.test_store import task

SETTLE, HEAL = 30.0, 60.0


class Market(Provider):
    """Machines in memory, of which there is room for some.

    Attributes:
        room: How many more there are.
        queues: Whether a launch without room stays open, as a bid or a job does.
        boots: How many looks at a launch it takes until its machines are there.
        knows_launches: Whether listings say which launch has brought a machine.
    """

    name = "market"
    elastic = True

    def __init__(self, home: Path) -> None:
        super().__init__(home, ProviderSettings(self.name))
        self.room = 0
        self.queues = False
        self.boots = 0
        self.knows_launches = True
        self.error: Exception | None = None
        self.made: dict[str, list[Instance]] = {}
        self.waiting: dict[str, Instance] = {}
        self.looks: dict[str, int] = {}
        self.gone: set[str] = set()
        self.count = 0

    def plan(self, config: TaskConfig) -> Plan:
        return Plan(
            self.name,
            "big",
            config.most_nodes,
            config.workers_per_node,
            price_per_hour=1.0,
            max_run_seconds=config.max_run_seconds,
        )

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        if self.error is not None:
            raise self.error
        if intent.token not in self.made:
            if self.room < intent.fewest:
                if not self.queues:
                    raise CapacityUnavailable("no room", retry_after=5.0)
                bid = Instance(f"bid-{intent.token}", intent.task_id, "starting")
                self.waiting[intent.token] = bid
                raise LaunchPending("in a queue", 5.0, queued=True)
            self.waiting.pop(intent.token, None)
            size = min(self.room, intent.count)
            self.room -= size
            # Ids whose order is not that of the launches.
            names = [f"m{(self.count + n) * 7919 % 1000:03d}" for n in range(size)]
            self.count += size
            self.made[intent.token] = [
                Instance(n, intent.task_id, price_per_hour=1.0, launched_at=1.0) for n in names
            ]
        self.looks[intent.token] = self.looks.get(intent.token, 0) + 1
        if self.looks[intent.token] <= self.boots:
            raise LaunchPending("it boots", 20.0)
        return self.made[intent.token]

    def there(self) -> list[str]:
        return [i.id for made in self.made.values() for i in made if i.id not in self.gone]

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        some = {**self.made, **{token: [bid] for token, bid in self.waiting.items()}}
        return [
            dataclasses.replace(each, launch=token if self.knows_launches else "")
            for token, brought in some.items()
            for each in brought
            if each.id not in self.gone
        ]

    def terminate(self, instances: Sequence[Instance]) -> None:
        ending = {instance.id for instance in instances}
        self.room += len(ending.intersection(self.there()))
        self.gone |= ending
        self.waiting = {k: bid for k, bid in self.waiting.items() if bid.id not in ending}

    def take_away(self, names: Sequence[str]) -> None:
        """Machines are gone, and so is their room."""
        self.gone |= set(names)

    def connect(self, instance: Instance) -> Connection:
        raise NotImplementedError

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        raise NotImplementedError


class Scene:
    """One task with a gang of 2 to 5 nodes, and its market, on a simulated clock."""

    def __init__(self, home: Path, fewest: int = 2, most: int = 5, spares: int = 0) -> None:
        self.home = home
        self.now = 1000.0
        self.store = Store(home / "state.db")
        plan = Plan(
            "market", "big", most, 1, min_instances=fewest, price_per_hour=1.0, spares=spares
        )
        config = {"settle_seconds": SETTLE, "heal_seconds": HEAL}
        self.store.create_task(task("t1", plan=plan.to_json(), config=config))
        self.market: Market = Market(home)
        self.told: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        lease = self.store.acquire_lease("t1", "me", 1e9)
        assert lease is not None
        self.lease: Lease = lease

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def turn(self) -> Turn:
        return Turn(self.store, "t1", self.sleep, self.told.append, lambda: False)

    def attempt(self) -> list[str]:
        """The roster of the next attempt, as the supervisor records it."""
        record = self.store.get_task("t1")

        async def run() -> GangNodes | None:
            view = TaskView.of(record)
            provisioner = Provisioner(
                self.store, self.lease, self.market, view, Threads(), self.turn()
            )
            return await provisioner.complete(record, Path("/a"))

        found = asyncio.run(run())
        assert found is not None
        self.store.transition(
            self.lease,
            "starting",
            "",
            attempt=record.attempt + 1,
            roster=found.roster,
            instances=found.records,
            settled=found.settled,
        )
        return found.roster

    def open_launches(self) -> list[str]:
        return [i.token for i in self.store.intents("t1") if i.state == "open"]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path)
    monkeypatch.setattr(clock, "now", lambda home=None: made.now)
    yield made
    made.store.close()


def test_it_begins_with_all_if_there_is_room(scene: Scene) -> None:
    scene.market.room = 9
    assert len(scene.attempt()) == 5
    assert scene.now == 1000.0
    assert len(scene.market.there()) == 5


def test_it_waits_a_while_for_more_and_begins_with_what_there_is(scene: Scene) -> None:
    scene.market.room = 3
    assert len(scene.attempt()) == 3
    assert scene.now == 1000.0 + SETTLE
    assert scene.open_launches() == []


def test_it_takes_what_comes_while_it_waits(scene: Scene) -> None:
    scene.market.room = 2

    def more() -> None:
        if scene.now > 1010:
            scene.market.room += 1
            scene.meanwhile = lambda: None

    scene.meanwhile = more
    assert len(scene.attempt()) == 3
    assert scene.now == 1000.0 + SETTLE


def test_it_does_not_begin_with_fewer_than_it_needs(scene: Scene) -> None:
    scene.market.room = 1

    def more() -> None:
        if scene.now > 5000:
            scene.market.room = 2
            scene.meanwhile = lambda: None

    scene.meanwhile = more
    assert len(scene.attempt()) == 2
    assert scene.now > 5000


def test_a_lost_node_is_waited_for_and_then_done_without(scene: Scene) -> None:
    scene.market.room = 4
    before = scene.attempt()
    began = scene.now
    scene.market.take_away([before[1]])
    assert scene.attempt() == [before[0], *before[2:]]
    assert scene.now == began + HEAL


def test_a_new_node_takes_the_rank_of_the_lost_one(scene: Scene) -> None:
    scene.market.room = 5
    before = scene.attempt()
    scene.market.take_away([before[2]])
    scene.market.room = 1
    after = scene.attempt()
    assert [*after[:2], *after[3:]] == [*before[:2], *before[3:]]
    assert after[2] not in before


def test_it_grows_at_the_next_attempt_without_waiting(scene: Scene) -> None:
    scene.market.room = 2
    before = scene.attempt()
    began = scene.now
    assert scene.attempt() == before
    scene.market.room = 2
    after = scene.attempt()
    assert after[:2] == before
    assert len(after) == 4
    assert scene.now == began


@pytest.mark.parametrize("error", [QuotaExceeded("quota"), ProviderError("no"), OSError("net")])
def test_whatever_prevents_more_nodes_does_not_prevent_the_attempt(
    scene: Scene, error: Exception
) -> None:
    scene.market.room = 3
    before = scene.attempt()
    scene.market.take_away(before[:1])
    scene.market.error = error
    assert scene.attempt() == before[1:]
    assert scene.open_launches() == []


def test_a_bid_for_more_nodes_is_withdrawn(scene: Scene) -> None:
    scene.market.queues = True
    scene.market.room = 3
    assert len(scene.attempt()) == 3
    assert scene.market.waiting == {}
    assert scene.open_launches() == []


class Killed(BaseException):
    """The supervisor is killed."""


def test_a_bid_that_was_not_withdrawn_yet_is_not_doubled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor is killed while it withdraws a bid. The next one asks for nothing beside it."""
    scene.market.queues = True
    scene.market.room = 3
    most = 0
    launch = scene.market.launch

    def watched(intent: LaunchIntent) -> list[Instance]:
        nonlocal most
        try:
            return launch(intent)
        finally:
            asked = sum(1 for _ in scene.market.waiting) + len(scene.market.there())
            most = max(most, asked)

    def killed(instances: Sequence[Instance]) -> None:
        raise Killed

    monkeypatch.setattr(scene.market, "launch", watched)
    with monkeypatch.context() as patch:
        patch.setattr(scene.market, "terminate", killed)
        with pytest.raises(Killed):
            scene.attempt()
    assert len(scene.market.waiting) == 1
    assert len(scene.attempt()) == 3
    assert most == 4, "the three and one bid"
    assert scene.market.waiting == {}
    assert scene.open_launches() == []


def test_machines_that_boot_are_waited_for(scene: Scene) -> None:
    scene.market.boots = 10
    scene.market.room = 4
    before = scene.attempt()
    scene.market.take_away(before[:1])
    scene.market.room = 1
    assert len(scene.attempt()) == 4


def test_a_gang_of_one_size_waits_for_all_its_nodes(tmp_path: Path) -> None:
    plan = Plan("market", "big", 4, 1)
    asked = TaskView.of(task("t1", plan=plan.to_json()))
    assert LackingNodes.of(asked, 0, 0) == LackingNodes(4, 4, 4, 30.0)
    assert LackingNodes.of(asked, 4, 3) == LackingNodes(1, 1, 1, 60.0)


@pytest.fixture
def spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, spares=1)
    monkeypatch.setattr(clock, "now", lambda home=None: made.now)
    yield made
    made.store.close()


def test_a_spare_takes_the_lost_rank_before_the_gang_shrinks(spared: Scene) -> None:
    spared.market.room = 9
    before = spared.attempt()
    (spare,) = set(spared.market.there()) - set(before)
    began = spared.now
    spared.market.take_away(before[1:2])
    spared.market.room = 0
    assert spared.attempt() == [before[0], spare, *before[2:]]
    assert spared.now == began, "nothing is waited for"
    spared.market.take_away(before[:1])
    assert spared.attempt() == [spare, *before[2:]]
    assert spared.now == began + HEAL


def test_two_are_lost_and_one_spare_is_there(spared: Scene) -> None:
    spared.market.room = 9
    before = spared.attempt()
    (spare,) = set(spared.market.there()) - set(before)
    spared.market.take_away(before[:2])
    spared.market.room = 0
    assert spared.attempt() == [spare, *before[2:]]
    assert sorted(spared.market.there()) == sorted([spare, *before[2:]])


def test_the_first_attempt_needs_the_fewest_nodes_and_the_spares(spared: Scene) -> None:
    spared.market.room = 2

    def more() -> None:
        if spared.now > 5000:
            spared.market.room = 3
            spared.meanwhile = lambda: None

    spared.meanwhile = more
    roster = spared.attempt()
    assert spared.now > 5000
    assert len(roster) == 2
    assert len(spared.market.there()) == 3


def test_a_spare_is_not_withdrawn_with_a_launch_that_brought_nothing(spared: Scene) -> None:
    spared.market.room = 6
    before = spared.attempt()
    spared.market.take_away(before[:1])
    (spare,) = set(spared.market.there()) - set(before)
    spared.market.room = 0
    after = spared.attempt()
    assert spare in after
    assert sorted(spared.market.there()) == sorted(after)


def test_caps_count_the_largest_gang_and_its_spares(tmp_path: Path) -> None:
    config = TaskConfig(
        command="true", num_instances=(2, 5), spares=2, max_run_time_hours=1, spot=False
    )
    plan = capped_plan(config, Market(tmp_path))
    assert (plan.min_instances, plan.num_instances, plan.machines) == (2, 5, 7)
    # An hour and the time to end, for seven.
    assert plan.worst_case_cost is not None
    assert plan.worst_case_cost >= 7.0
    assert price_text.machines(plan) == "2 to 5 + 2 spare × big"
    assert "$4.00 to $7.00 in all" in price_text.price(plan)


def test_a_provider_that_launches_all_or_none_refuses_in_words(tmp_path: Path) -> None:
    market = Market(tmp_path)
    market.elastic = False
    config = TaskConfig(command="true", num_instances=(2, 5))
    with pytest.raises(ConfigError, match=r"market launches all nodes of a gang or none.*2 to 5"):
        capped_plan(config, market)
    assert capped_plan(TaskConfig(command="true", num_instances=(5, 5)), market).num_instances == 5


EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.booleans()), max_size=5)


@given(st.integers(1, 4), st.integers(0, 4), st.booleans(), EVENTS)
@settings(max_examples=20, deadline=None)
def test_whatever_is_lost_and_returns(
    fewest: int, more: int, queues: bool, events: list[tuple[int, int, bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        scene = Scene(Path(home), fewest, fewest + more)
        patch.setattr(clock, "now", lambda home=None: scene.now)
        market, roster = scene.market, list[str]()
        market.queues = queues
        for lost, room, boots in [(0, 0, False), *events]:
            market.boots = 3 if boots else 0
            market.room = room
            market.take_away(roster[:lost])

            def lets_some_go() -> None:
                if scene.now % 90 < 10:
                    market.room += 1

            scene.meanwhile = lets_some_go
            stay = roster[lost:]
            roster = scene.attempt()
            assert fewest <= len(roster) <= fewest + more
            assert len(set(roster)) == len(roster)
            assert [name for name in roster if name in stay] == stay
            assert sorted(roster) == sorted(market.there()), "something is charged beside the gang"
            assert market.waiting == {}
            assert scene.open_launches() == []
            rows = [r for r in scene.store.instances("t1") if r.ended_at is None]
            assert sorted(r.id for r in rows) == sorted(roster)
            assert {r.id: r.node_rank for r in rows} == {n: k for k, n in enumerate(roster)}
        scene.store.close()


def test_the_money_is_looked_at_while_it_waits_for_more(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    record = scene.store.get_task("t1")
    plan = {**record.plan, "max_cost": 0.001}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda home=None: scene.now)
        scene.market.room = 3
        before = scene.attempt()
        scene.market.take_away(before[:1])
        scene.store.close()
        database = json.dumps(plan)
        import sqlite3

        with sqlite3.connect(tmp_path / "state.db") as db:
            db.execute("UPDATE tasks SET plan = ?", (database,))
        scene.store = Store(tmp_path / "state.db")
        with pytest.raises(LaunchRefused, match="max_cost"):
            scene.attempt()
