"""Nodes are asked for only after the intent is durable, by the same token until it is settled, all or none."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flowlite.connect.base import Connection
from flowlite.errors import (
    CapacityUnavailable,
    CapExceeded,
    ConfigError,
    FlowError,
    LeaseLost,
    ProviderError,
    QuotaExceeded,
)
from flowlite.provider import (
    Instance,
    LaunchIntent,
    LaunchPending,
    NodeSettings,
    Plan,
    Provider,
)
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig
from flowlite.state import clock
from flowlite.state.records import InstanceRecord
from flowlite.state.store import Lease, Store
from flowlite.supervise import provision
from flowlite.supervise.provision import (
    JOINING,
    GangNodes,
    LaunchRefused,
    NotGone,
    Provisioner,
)
from flowlite.supervise.queue.turn import Turn
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from tests.test_store import task


class Cloud(Provider):
    """Instances in memory. `trouble` are errors for the next launches; with `after`, once they were made."""

    name = "cloud"

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent, ProviderSettings(self.name))
        self.path = path
        self.made: dict[str, list[Instance]] = {}
        self.gone: set[str] = set()
        self.calls: list[str] = []
        self.cleared: list[str] = []
        self.avoided: list[str] = []
        self.trouble: list[Exception] = []
        self.after = False
        self.stubborn = False
        self.price = 2.0
        self.launched_at = float(round(clock.now()))

    def plan(self, config: TaskConfig) -> Plan:
        raise NotImplementedError

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        # Seen from another connection: what is not durable is not there.
        store = Store(self.path)
        assert [i.token for i in store.intents("t1") if i.state == "open"][-1] == intent.token
        store.close()
        self.calls.append(intent.token)
        if self.trouble and not self.after:
            raise self.trouble.pop(0)
        ids = [f"{intent.token}-{n}" for n in range(intent.count)]
        made = [
            Instance(name, "t1", price_per_hour=2.0, launched_at=self.launched_at) for name in ids
        ]
        self.made.setdefault(intent.token, made)
        if self.trouble:
            raise self.trouble.pop(0)
        return self.made[intent.token]

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        return [i for made in self.made.values() for i in made if i.id not in self.gone]

    def price_to_launch(self, plan: Plan) -> float:
        return self.price

    def terminate(self, instances: Sequence[Instance]) -> None:
        if not self.stubborn:
            self.gone |= {instance.id for instance in instances}

    def avoid(self, instances: Sequence[Instance]) -> None:
        self.avoided += [instance.id for instance in instances]

    def clear(self, task_id: str) -> None:
        self.cleared.append(task_id)

    def connect(self, instance: Instance) -> Connection:
        raise NotImplementedError

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        raise NotImplementedError


class Scene:
    """One leased task of three nodes, and its provisioner."""

    def __init__(self, home: Path, price: float = 2.0, max_cost: float | None = None) -> None:
        self.home = home
        self.store = Store(home / "state.db")
        plan = Plan("cloud", "big", 3, 1, price_per_hour=price, max_cost=max_cost)
        self.store.create_task(task("t1", plan=plan.to_json()))
        self.cloud = Cloud(home / "state.db")
        self.told: list[str] = []
        self.naps: list[float] = []
        self.lease: Lease
        self.take_over()

    def take_over(self) -> None:
        """Another supervisor goes on."""
        lease = self.store.acquire_lease("t1", "me", 60)
        assert lease is not None
        self.lease = lease

    async def nap(self, seconds: float) -> None:
        self.naps.append(seconds)

    def with_provisioner(
        self,
        do: Callable[[Provisioner], object],
        given_up: Callable[[], bool] = lambda: False,
    ) -> object:
        async def run() -> object:
            asked = TaskView.of(self.store.get_task("t1"))
            turn = Turn(self.store, "t1", self.nap, self.told.append, given_up)
            provisioner = Provisioner(self.store, self.lease, self.cloud, asked, Threads(), turn)
            return await do(provisioner)  # type: ignore[misc]

        return asyncio.run(run())

    def complete(self, given_up: Callable[[], bool] = lambda: False) -> GangNodes | None:
        record = self.store.get_task("t1")
        found = self.with_provisioner(lambda p: p.complete(record, Path("/agent.pyz")), given_up)
        assert found is None or isinstance(found, GangNodes)
        return found

    def write_down(self, gathered: GangNodes) -> None:
        """As the supervisor does with what it got."""
        self.store.transition(
            self.lease,
            "starting",
            "",
            roster=gathered.roster,
            instances=gathered.records,
            settled=gathered.settled,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_all_nodes_in_the_order_of_their_ids(scene: Scene) -> None:
    gathered = scene.complete()
    assert gathered is not None
    assert gathered.roster == sorted(i.id for i in scene.cloud.list_instances())
    assert [(r.node_rank, r.price_per_hour, r.launched_at) for r in gathered.records] == [
        (rank, 2.0, scene.cloud.launched_at) for rank in range(3)
    ]
    assert gathered.settled == {"t1-launch-1": "done"}


def test_a_search_of_weeks_does_not_pile_up_launches_that_came_to_nothing(scene: Scene) -> None:
    """All of them are read at each step, and written at each change of the task."""
    store, lease = scene.store, scene.lease
    for number in range(1, 81):
        token = f"t1-launch-{number}"
        store.put_intent(lease, token, "launch", {"purpose": JOINING} if number == 1 else {})
        store.settle_intent(lease, token, "undone" if number % 2 else "refused")
    old = Instance("old", "t1", "ended", launch="t1-launch-3")
    row = InstanceRecord("old", "t1", "cloud", "ended", 2.0, 60.0, old.to_json(), ended_at=70.0)
    store.put_instances(lease, [row])
    gathered = scene.complete()
    assert gathered is not None
    assert gathered.settled == {"t1-launch-81": "done"}
    left = [int(each.token.rpartition("-")[2]) for each in store.intents("t1")]
    # That of a machine that was charged stays, and one that tells that a machine was to join a gang that runs.
    assert left == [1, 3, *range(31, 82)]


def test_a_supervisor_that_takes_over_before_it_was_written_down_asks_by_the_same_token(
    scene: Scene,
) -> None:
    first = scene.complete()
    scene.take_over()
    again = scene.complete()
    assert first is not None
    assert again is not None
    assert again.roster == first.roster
    assert scene.cloud.calls == ["t1-launch-1"] * 2
    assert len(scene.cloud.list_instances()) == 3


def test_capacity_is_waited_for_and_the_reason_is_told(scene: Scene) -> None:
    scene.cloud.trouble = [CapacityUnavailable("no h100 left", 7.0)] * 2
    assert scene.complete() is not None
    assert scene.told == ["no h100 left"] * 2
    assert scene.naps == [7.0, 7.0]
    assert scene.cloud.calls == ["t1-launch-1"] * 3


def test_who_gives_up_waiting_gets_nothing(scene: Scene) -> None:
    scene.cloud.trouble = [CapacityUnavailable("none", 1.0)] * 9
    assert scene.complete(given_up=lambda: len(scene.told) == 3) is None
    assert scene.cloud.list_instances() == []


def test_an_outcome_that_is_not_known_is_asked_for_again_with_longer_pauses(scene: Scene) -> None:
    scene.cloud.trouble, scene.cloud.after = [TimeoutError("read timed out")] * 2, True
    gathered = scene.complete()
    assert gathered is not None
    assert len(scene.cloud.list_instances()) == 3
    assert scene.naps == [2.0, 4.0]


@pytest.mark.parametrize("kind", [ProviderError, ConfigError, CapExceeded])
def test_a_refusal_is_final_and_noted(scene: Scene, kind: type[FlowError]) -> None:
    """Whatever an adapter's launch raises, such as for a capacity block that has ended since, is no defect of ours."""
    scene.cloud.trouble = [kind("quota of 0 for p5.48xlarge")]
    with pytest.raises(LaunchRefused, match="cloud refused the launch: quota of 0"):
        scene.complete()
    assert [intent.state for intent in scene.store.intents("t1")] == ["refused"]


def test_a_replacement_takes_the_rank_of_the_one_that_is_gone(scene: Scene) -> None:
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    scene.cloud.gone.add(first.roster[1])
    scene.with_provisioner(_set_aside(first.roster[0]))
    again = scene.complete()
    assert again is not None
    assert again.roster == ["t1-launch-2-0", "t1-launch-2-1", first.roster[2]]
    assert {i.id for i in scene.cloud.list_instances()} == set(again.roster)
    stored = {i.id: i.state for i in scene.store.instances("t1")}
    assert (stored[first.roster[0]], stored[first.roster[1]]) == ("lost", "lost")
    scene.write_down(again)
    live = {r.node_rank: r.id for r in scene.store.instances("t1") if r.ended_at is None}
    assert [live[rank] for rank in range(3)] == again.roster


class TestQuotas:
    """A provider may count machines that have ended for some minutes more."""

    def test_a_replacement_that_a_quota_refuses_is_asked_for_again(self, scene: Scene) -> None:
        first = scene.complete()
        assert first is not None
        scene.write_down(first)
        scene.with_provisioner(_set_aside(first.roster[0]))
        scene.cloud.trouble = [QuotaExceeded("MaxSpotInstanceCountExceeded") for _ in range(6)]
        again = scene.complete()
        assert again is not None
        assert again.roster[1:] == first.roster[1:]
        assert scene.naps == sorted(scene.naps)
        assert len(scene.naps) == 6
        assert "counted still" in scene.told[-1]

    def test_for_ten_minutes(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        first = scene.complete()
        assert first is not None
        scene.write_down(first)
        scene.with_provisioner(_set_aside(first.roster[0]))
        monkeypatch.setattr(provision, "_COUNTED_SECONDS", 0.0)
        scene.cloud.trouble = [QuotaExceeded("too many") for _ in range(100)]
        with pytest.raises(LaunchRefused, match="too many"):
            scene.complete()

    def test_the_first_machines_of_a_task_are_refused_at_once(self, scene: Scene) -> None:
        scene.cloud.trouble = [QuotaExceeded("too many")]
        with pytest.raises(LaunchRefused, match="too many"):
            scene.complete()
        assert scene.naps == []


def _set_aside(name: str) -> Callable[[Provisioner], object]:
    async def do(provisioner: Provisioner) -> None:
        provisioner.set_aside({name}, ())

    return do


def test_a_node_that_the_provider_alone_knows_to_be_gone_is_lost(scene: Scene) -> None:
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    scene.cloud.gone.add(first.roster[1])
    again = scene.complete()
    assert again is not None
    assert again.roster[1] not in first.roster
    stored = {row.id: row for row in scene.store.instances("t1")}
    assert (stored[first.roster[1]].state, stored[first.roster[1]].node_rank) == ("lost", 1)
    assert stored[first.roster[1]].ended_at is not None


def test_a_node_that_cannot_be_ended_holds_up_the_next_attempt(scene: Scene) -> None:
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    scene.with_provisioner(_set_aside(first.roster[0]))
    scene.cloud.stubborn = True
    with pytest.raises(ProviderError, match=f"{first.roster[0]}, to be replaced, still exist"):
        scene.complete()
    assert scene.cloud.calls == ["t1-launch-1"]


def test_the_end_is_the_end_of_every_instance_known_or_listed(scene: Scene) -> None:
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    stray = Instance("forgotten", "t1")
    scene.cloud.made["other"] = [stray]
    scene.cloud.stubborn = True
    with pytest.raises(ProviderError, match="still exist"):
        scene.with_provisioner(lambda p: p.end_all())
    scene.cloud.stubborn = False
    ended = scene.with_provisioner(lambda p: p.end_all())
    assert isinstance(ended, list)
    assert {record.id for record in ended} == set(first.roster)
    assert scene.cloud.list_instances() == []


def test_what_nobody_has_noted_is_charged_at_the_end(scene: Scene) -> None:
    """A supervisor was killed before it noted what it had launched."""
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    scene.cloud.made["other"] = [Instance("forgotten", "t1", launched_at=scene.cloud.launched_at)]
    ended = scene.with_provisioner(lambda p: p.end_all())
    assert isinstance(ended, list)
    assert {record.id for record in ended} == {*first.roster, "forgotten"}
    assert all(record.ended_at is not None for record in ended)


def test_a_task_that_never_asked_for_a_node_is_ended_without_asking(scene: Scene) -> None:
    def fail(task_id: str | None = None) -> list[Instance]:
        raise AssertionError("was asked")

    scene.cloud.list_instances = fail  # type: ignore[method-assign]
    assert scene.with_provisioner(lambda p: p.end_all()) == []


def test_a_supervisor_that_was_suspended_ends_nothing_of_the_next_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    scene.cloud.gone.add(first.roster[0])
    stale = scene.store.get_task("t1")
    listing = scene.cloud.list_instances

    def suspended(task_id: str | None = None) -> list[Instance]:
        """The answer comes when another supervisor has made good the loss."""
        monkeypatch.setattr(scene.cloud, "list_instances", listing)
        scene.take_over()
        second = scene.complete()
        assert second is not None
        scene.write_down(second)
        return listing(task_id)

    monkeypatch.setattr(scene.cloud, "list_instances", suspended)
    with pytest.raises(LeaseLost):
        scene.with_provisioner(lambda p: p.end_unusable(stale.roster))
    roster = scene.store.get_task("t1").roster
    assert roster != stale.roster
    assert scene.cloud.gone.isdisjoint(roster)


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_machine_that_was_replaced_while_it_booted_is_charged_no_longer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_ending: bool
) -> None:
    """What it seems to cost counts against `max_cost`, for as long as its row has no end."""
    monkeypatch.setattr(provision, "_FIRST_LOOK", 0.0)
    scene.cloud.made["boots"] = [Instance("m1", "t1", price_per_hour=2.0, launched_at=60.0)]
    scene.cloud.trouble = [LaunchPending("it boots", 1.0)]
    nap = scene.nap

    async def replaced(seconds: float) -> None:
        if is_ending:
            (machine,) = scene.cloud.made["boots"]
            scene.cloud.made["boots"] = [dataclasses.replace(machine, state="ending")]
        else:
            scene.cloud.gone.add("m1")
        await nap(seconds)

    monkeypatch.setattr(scene, "nap", replaced)
    found = scene.complete()
    assert found is not None
    scene.write_down(found)
    rows = {row.id: row for row in scene.store.instances("t1")}
    assert rows.keys() == {"m1", *found.roster}
    assert {name for name, row in rows.items() if row.ended_at is not None} == {"m1"}


class TestPlansThatCostNothing:
    """No cap holds for them, so nothing that is charged may be launched from one."""

    @pytest.fixture
    def free(self, tmp_path: Path) -> Scene:
        return Scene(tmp_path, price=0.0)

    def test_what_would_be_charged_is_not_launched(self, free: Scene) -> None:
        with pytest.raises(
            LaunchRefused, match=r"costs \$0\.00.*charges \$2\.00.*nothing was launched"
        ):
            free.complete()
        assert (free.cloud.calls, free.store.intents("t1")) == ([], [])

    def test_what_turns_out_to_be_charged_is_ended(self, free: Scene) -> None:
        free.cloud.price = 0.0
        with pytest.raises(LaunchRefused, match=r"costs \$0\.00.*charges \$2\.00.*being ended"):
            free.complete()
        assert len(free.cloud.gone) == 3
        assert [intent.state for intent in free.store.intents("t1")] == ["undone"]

    def test_one_that_is_charged_among_others_is_enough(
        self, free: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free.cloud.price = 0.0
        launch = free.cloud.launch

        def one_charged(intent: LaunchIntent) -> list[Instance]:
            prices = (0.0, 2.0, 0.0)
            made = zip(launch(intent), prices, strict=True)
            found = [dataclasses.replace(each, price_per_hour=price) for each, price in made]
            free.cloud.made[intent.token] = found
            return found

        monkeypatch.setattr(free.cloud, "launch", one_charged)
        with pytest.raises(LaunchRefused, match=r"charges \$2\.00.*being ended"):
            free.complete()
        assert len(free.cloud.gone) == 3

    @pytest.mark.parametrize("told", [True, False])
    def test_a_spare_that_would_be_charged_is_not_kept(self, free: Scene, told: bool) -> None:
        free.cloud.price = 2.0 if told else 0.0
        with pytest.raises(LaunchRefused, match=r"costs \$0\.00.*charges \$2\.00"):
            free.with_provisioner(
                lambda p: p.launch_spares(free.store.get_task("t1"), 1, Path("/agent.pyz"))
            )
        assert (len(free.cloud.calls), len(free.cloud.gone)) == ((0, 0) if told else (1, 1))
        assert free.store.instances("t1") == []

    def test_a_price_that_nobody_can_tell_launches_nothing(
        self, free: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(plan: Plan) -> float:
            raise ProviderError("the price list does not answer")

        monkeypatch.setattr(free.cloud, "price_to_launch", fail)
        with pytest.raises(LaunchRefused, match="the price list does not answer"):
            free.complete()
        assert free.cloud.calls == []


# What lost instances leave behind


@pytest.fixture
def broken(scene: Scene) -> Scene:
    """A gang of three of which the first is gone, with another machine beside it that nobody asked for."""
    first = scene.complete()
    assert first is not None
    scene.write_down(first)
    scene.cloud.gone.add(first.roster[0])
    scene.cloud.made["beside"] = [Instance("won-anew", "t1", launched_at=60.0)]
    return scene


def _beside(scene: Scene, *, doomed_too: bool = False) -> bool:
    roster = scene.store.get_task("t1").roster
    kept = scene.with_provisioner(lambda p: p.end_beside(roster, doomed_too=doomed_too))
    assert isinstance(kept, bool)
    return kept


def _there(scene: Scene) -> set[str]:
    return {each.id for each in scene.cloud.list_instances()}


def test_what_is_beside_a_broken_gang_is_ended_and_sound_instances_are_kept(broken: Scene) -> None:
    assert not _beside(broken)
    assert _there(broken) == set(broken.store.get_task("t1").roster[1:])


def test_instances_that_go_with_those_that_are_gone_are_kept_for_a_while(broken: Scene) -> None:
    roster = broken.store.get_task("t1").roster
    made = broken.cloud.made["t1-launch-1"]
    broken.cloud.made["t1-launch-1"] = [dataclasses.replace(i, state="ending") for i in made]
    assert _beside(broken)
    assert _there(broken) == {*roster[1:], "won-anew"}, "their logs can still be had"
    assert not _beside(broken, doomed_too=True)
    assert _there(broken) == set()


def test_where_nothing_is_charged_nobody_is_in_a_hurry(tmp_path: Path) -> None:
    scene = Scene(tmp_path, price=0.0)
    scene.cloud.price = 0.0
    scene.cloud.made["beside"] = [Instance("won-anew", "t1")]
    assert not _beside(scene)
    assert _there(scene) == {"won-anew"}


def test_what_cannot_be_used_again_is_ended_before_the_pause(broken: Scene) -> None:
    roster = broken.store.get_task("t1").roster
    broken.with_provisioner(_set_aside(roster[1]))
    broken.with_provisioner(lambda p: p.end_unusable(roster))
    assert _there(broken) == {roster[2]}


def test_only_machines_that_were_set_aside_are_avoided(broken: Scene) -> None:
    roster = broken.store.get_task("t1").roster
    broken.with_provisioner(_set_aside(roster[1]))
    broken.with_provisioner(lambda p: p.end_unusable(roster))
    assert set(broken.cloud.avoided) == {roster[1]}


def test_machines_without_a_gang_are_ended_before_others_are_launched(scene: Scene) -> None:
    """Those of a place that was given up, of which the roster says nothing any more."""
    scene.cloud.made["earlier"] = [old := Instance("old", "t1", launched_at=60.0)]
    row = InstanceRecord("old", "t1", "cloud", "running", 2.0, 60.0, old.to_json())
    scene.store.put_instances(scene.lease, [row])
    gathered = scene.complete()
    assert gathered is not None
    assert "old" not in _there(scene)
    assert len(_there(scene)) == 3


class TestMoneyWhileItWaitsForRoom:
    """Two machines are there and charged, and the third does not come."""

    @pytest.fixture
    def waiting(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
        def make(max_cost: float | None, errors: int) -> Scene:
            scene = Scene(tmp_path, max_cost=max_cost)
            first = scene.complete()
            assert first is not None
            scene.write_down(first)
            now = clock.now() + 3600
            monkeypatch.setattr(clock, "now", lambda home=None: now)
            scene.cloud.gone.add(first.roster[0])
            scene.cloud.trouble = [CapacityUnavailable("full", 5000.0) for _ in range(errors)]
            scene.naps.clear()
            return scene

        return make

    def test_the_cap_ends_it(self, waiting: Callable[..., Scene]) -> None:
        scene = waiting(4.0, errors=3)
        with pytest.raises(LaunchRefused, match=r"max_cost: \$4\.00 are used up"):
            scene.complete()
        assert len(scene.cloud.calls) == 2

    def test_it_sleeps_no_longer_than_the_money_lasts(self, waiting: Callable[..., Scene]) -> None:
        scene = waiting(7.0, errors=1)
        assert scene.complete() is not None
        # Three machines for an hour were $6; the one that is gone costs nothing more.
        assert scene.naps == [pytest.approx(1.0 / (2 * 2.0) * 3600, abs=60)]

    def test_without_a_cap_it_sleeps_as_it_was_told(self, waiting: Callable[..., Scene]) -> None:
        scene = waiting(None, errors=1)
        assert scene.complete() is not None
        assert scene.naps == [5000.0]


def test_it_sleeps_no_longer_than_the_money_of_all_its_machines_lasts(tmp_path: Path) -> None:
    scene = Scene(tmp_path, max_cost=1.0)
    now = clock.now()
    rows = []
    for rank in range(3):
        name = f"i-{rank}"
        data = Instance(name, "t1").to_json()
        rows.append(InstanceRecord(name, "t1", "cloud", "running", 2.0, now, data, rank))
    scene.with_provisioner(lambda p: p._pause(5000.0))
    scene.store.put_instances(scene.lease, rows)
    scene.with_provisioner(lambda p: p._pause(5000.0))
    scene.with_provisioner(lambda p: p._pause(5.0))
    assert scene.naps == [5000.0, pytest.approx(1.0 / (3 * 2.0) * 3600, abs=30), 5.0]


def test_only_refused_launches_of_nodes_to_grow_are_forgotten(scene: Scene) -> None:
    states = {"open": 1, "done": 2, "refused": 3}
    for state, number in states.items():
        token = f"t1-launch-{number}"
        intent = LaunchIntent(token, "t1", 1, {})
        data = {**intent.to_json(), "purpose": JOINING}
        scene.store.put_intent(scene.lease, token, "launch", data)
        if state != "open":
            scene.store.settle_intent(scene.lease, token, state)
    ordinary = LaunchIntent("t1-launch-4", "t1", 1, {})
    scene.store.put_intent(scene.lease, ordinary.token, "launch", ordinary.to_json())
    scene.store.settle_intent(scene.lease, ordinary.token, "refused")
    scene.with_provisioner(
        lambda p: p.launch_spares(scene.store.get_task("t1"), 1, Path("/agent.pyz"))
    )
    left = {each.token[-1]: each.state for each in scene.store.intents("t1")}
    assert left == {"1": "open", "2": "done", "4": "refused", "5": "open"}


def test_what_is_beside_the_instances_is_removed_when_none_of_them_is_left(scene: Scene) -> None:
    gathered = scene.complete()
    assert gathered is not None
    scene.write_down(gathered)
    scene.cloud.stubborn = True
    with pytest.raises(NotGone):
        scene.with_provisioner(lambda p: p.end_all())
    assert scene.cloud.cleared == []
    scene.cloud.stubborn = False
    scene.with_provisioner(lambda p: p.end_all())
    assert scene.cloud.cleared == ["t1"]


def test_what_may_not_exist_is_not_said_to_exist(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = scene.complete()
    assert gathered is not None
    until = time.mktime((2026, 11, 21, 16, 40, 10, 0, 0, -1))
    waiting = Instance("pending-1", "t1", unconfirmed=True, certain_from=until)
    monkeypatch.setattr(scene.cloud, "list_instances", lambda task_id=None: [waiting])
    with pytest.raises(NotGone) as caught:
        scene.with_provisioner(lambda p: p.end_all())
    told = "whether its launch has created machines is not certain until 16:40:10"
    assert str(caught.value) == told
