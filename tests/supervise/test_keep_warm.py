"""Nodes kept for the next task: written down before they cost anything, charged until their end, ended when asked."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import ProviderError
from flowlite.provider import Instance, LaunchIntent, Plan
from flowlite.state.store import InstanceRecord, Store
from flowlite.supervise.cleanup import warm_nodes
from flowlite.supervise.money.caps import Caps
from flowlite.supervise.money.cost import cost_of, rate_of
from flowlite.supervise.process import notifications
from flowlite.supervise.process.supervisor import Supervisor
from flowlite.supervise.provision import Provisioner
from flowlite.supervise.record.paths import TaskPaths
from tests.supervise.test_provision import Cloud, Scene


class KeepingCloud(Cloud):
    """Keeps what it is asked to, but for `broken`; lists it as warm. New instances go on from `continued`."""

    broken: str = ""
    continued: str = ""

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        store = Store(self.path)
        assert [(i.kind, i.state) for i in store.intents("t1")][-1] == ("keep", "open")
        store.close()
        self.calls.append(f"keep {len(instances)}")
        kept = [dataclasses.replace(i, state="warm") for i in instances if i.id != self.broken]
        for token, made in self.made.items():
            by_id = {each.id: each for each in kept}
            self.made[token] = [by_id.get(each.id, each) for each in made]
        return kept

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        found = super().launch(intent)
        return [dataclasses.replace(found[0], continues=self.continued), *found[1:]]


class KeepingScene(Scene):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.cloud: KeepingCloud = KeepingCloud(home / "state.db")

    def gathered(self) -> list[str]:
        found = self.complete()
        assert found is not None
        self.write_down(found)
        return found.roster

    def end(self, seconds: float = 600.0) -> list[InstanceRecord]:
        ended = self.with_provisioner(lambda p: p.end_all(seconds))
        assert isinstance(ended, list)
        self.store.put_instances(self.lease, ended)
        return ended


@pytest.fixture
def scene(tmp_path: Path) -> KeepingScene:
    return KeepingScene(tmp_path)


def test_kept_nodes_have_an_end_that_is_yet_to_come(scene: KeepingScene) -> None:
    roster = scene.gathered()
    ended = scene.end(600.0)
    assert sorted(row.id for row in ended) == roster
    assert {row.state for row in ended} == {"warm"}
    assert all(row.ended_at and 590 < row.ended_at - time.time() < 601 for row in ended)
    assert [i.state for i in scene.cloud.list_instances()] == ["warm"] * 3
    assert [i.state for i in scene.store.intents("t1")] == ["done", "done"]


def test_one_that_cannot_be_kept_is_ended(scene: KeepingScene) -> None:
    scene.cloud.broken = scene.gathered()[1]
    ended = {row.id: row.state for row in scene.end()}
    assert sorted(ended.values()) == ["ended", "warm", "warm"]
    assert ended[scene.cloud.broken] == "ended"
    assert scene.cloud.gone == {scene.cloud.broken}


def test_one_that_was_set_aside_is_not_kept(scene: KeepingScene) -> None:
    roster = scene.gathered()

    async def set_aside(provisioner: Provisioner) -> None:
        provisioner.set_aside({roster[0]}, ())

    scene.with_provisioner(set_aside)
    states = {row.id: row.state for row in scene.end()}
    assert states[roster[0]] == "lost"
    assert scene.cloud.gone == {roster[0]}


def test_without_a_wish_nothing_is_kept(scene: KeepingScene) -> None:
    scene.gathered()
    assert {row.state for row in scene.end(0.0)} == {"ended"}
    assert "keep 3" not in scene.cloud.calls


def test_a_supervisor_that_takes_over_in_between_ends_what_was_kept(scene: KeepingScene) -> None:
    roster = scene.gathered()
    scene.with_provisioner(lambda p: p.end_all(600.0))  # and was killed before it was written down
    scene.take_over()
    ended = scene.end(0.0)
    assert {row.state for row in ended} == {"ended"}
    assert scene.cloud.gone == set(roster)


def test_who_goes_on_with_a_node_ends_its_cost_for_the_one_before(scene: KeepingScene) -> None:
    roster = scene.gathered()
    scene.end()
    scene.cloud.continued = roster[0]
    scene.cloud.made.clear()
    scene.store.update_task(scene.lease, roster=[])
    assert scene.complete() is not None
    rows = {row.id: row for row in scene.store.instances("t1")}
    assert rows[roster[0]].state == "ended"
    assert rows[roster[0]].ended_at == pytest.approx(time.time(), abs=5)
    assert rows[roster[1]].state == "warm"


def test_what_is_kept_and_cannot_be_ended_keeps_nothing_else_from_its_end(
    scene: KeepingScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is cancelled while its machines are being kept, and the provider does not answer then."""

    class Cancelled(KeepingCloud):
        def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
            assert scene.store.request_cancel("t1")
            return super().keep(instances, seconds)

        def terminate(self, instances: Sequence[Instance]) -> None:
            raise ProviderError("503 Service Unavailable")

    scene.gathered()
    lasting = {"keep_warm": 600.0}
    scene.store.update_task(scene.lease, state="stopping", outcome="done", config=lasting)
    paths, made = TaskPaths(scene.home, "t1"), scene.cloud.made
    paths.directory.mkdir(parents=True)
    paths.storage.write_text("{}")
    notifications.keep_targets(paths, ["true"], "/")
    begun: list[str] = []
    monkeypatch.setattr(
        notifications,
        "run_detached",
        lambda home, module, task, event, before, given: begun.append(event),
    )
    scene.cloud = Cancelled(scene.home / "state.db")
    scene.cloud.made = made
    record = scene.store.get_task("t1")
    supervisor = Supervisor(scene.store, scene.home, record, scene.lease, scene.cloud)
    supervisor._sound = True
    asyncio.run(supervisor._go_on())
    assert scene.store.get_task("t1").state == "completed"
    assert {row.state for row in scene.store.instances("t1")} == {"warm"}
    assert supervisor.warm_seconds > 0
    assert begun == ["completed"]
    assert not paths.storage.exists()


def test_credentials_of_buckets_are_gone_before_the_task_is_final(
    scene: KeepingScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No supervisor comes after one that is killed in between."""
    scene.gathered()
    scene.store.update_task(scene.lease, state="stopping", outcome="done")
    paths = TaskPaths(scene.home, "t1")
    paths.directory.mkdir(parents=True)
    paths.storage.write_text("{}")
    record = scene.store.get_task("t1")
    supervisor = Supervisor(scene.store, scene.home, record, scene.lease, scene.cloud)
    there: list[bool] = []
    transition = scene.store.transition

    def noting(*given: Any, **more: Any) -> None:
        there.append(paths.storage.exists())
        transition(*given, **more)

    monkeypatch.setattr(scene.store, "transition", noting)
    asyncio.run(supervisor._go_on())
    assert scene.store.get_task("t1").state == "completed"
    assert there == [False]


class TestMoney:
    def row(self, now: float, **changes: object) -> InstanceRecord:
        made = InstanceRecord("i", "t1", "cloud", "warm", 3.6, now - 1000, {}, 0, now + 1000)
        return dataclasses.replace(made, **changes)  # type: ignore[arg-type]

    def test_a_warm_node_is_charged_until_now_and_at_most_until_its_end(self) -> None:
        row = self.row(now := time.time())
        assert cost_of([row], now) == pytest.approx(1.0)
        assert cost_of([row], now + 500) == pytest.approx(1.5)
        assert cost_of([row], now + 5000) == pytest.approx(2.0)
        assert rate_of([row], now) == 3.6
        assert rate_of([row], now + 5000) == 0.0

    @pytest.mark.parametrize(
        ("max_cost", "seconds"), [(None, 600.0), (100.0, 600.0), (1.2, 200.0), (0.5, 0.0)]
    )
    def test_the_cap_shortens_the_time(self, max_cost: float | None, seconds: float) -> None:
        plan = Plan("cloud", "big", 1, 1, price_per_hour=3.6, max_cost=max_cost)
        running = self.row(time.time(), state="running", ended_at=None)
        assert Caps(plan, {}).warm_seconds(600.0, [running]) == pytest.approx(seconds, abs=1)

    def test_the_cap_holds_if_the_price_rises_meanwhile(self) -> None:
        plan = Plan(
            "cloud", "big", 1, 1, price_per_hour=3.6, max_cost=1.2, spot=True, price_cap=7.2
        )
        running = self.row(time.time(), state="running", ended_at=None)
        assert Caps(plan, {}).warm_seconds(600.0, [running]) == pytest.approx(100.0, abs=1)

    def test_a_node_that_costs_nothing_is_not_capped(self) -> None:
        plan = Plan("cloud", "big", 1, 1, max_cost=0.1)
        free = self.row(time.time(), state="running", ended_at=None, price_per_hour=0.0)
        assert Caps(plan, {}).warm_seconds(600.0, [free]) == 600.0


class TestEndedBeforeTheirTime:
    def test_all_of_them_when_asked(
        self, scene: KeepingScene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(warm_nodes, "provider_of_task", lambda record, home: scene.cloud)
        roster = scene.gathered()
        scene.end()
        assert sorted(row.id for row in warm_nodes.warm_nodes(scene.store, scene.home)) == roster
        ended, problems = warm_nodes.end_warm_nodes(scene.store, scene.home, dry_run=True)
        assert (len(ended), scene.cloud.gone) == (3, set())
        ended, problems = warm_nodes.end_warm_nodes(scene.store, scene.home)
        assert (len(ended), problems) == (3, [])
        assert scene.cloud.gone == set(roster)
        assert warm_nodes.warm_nodes(scene.store, scene.home) == []

    def test_those_that_cannot_be_ended_stay_on_the_list(
        self, scene: KeepingScene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(warm_nodes, "provider_of_task", lambda record, home: scene.cloud)
        scene.gathered()
        scene.end()

        def fail(instances: Sequence[Instance]) -> None:
            raise ProviderError("no answer")

        monkeypatch.setattr(scene.cloud, "terminate", fail)
        assert warm_nodes.end_warm_nodes(scene.store, scene.home) == ([], ["cloud: no answer"])
        assert len(warm_nodes.warm_nodes(scene.store, scene.home)) == 3

    def test_those_that_are_known_to_be_gone_are_noted_as_such(
        self, scene: KeepingScene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(warm_nodes, "provider_of_task", lambda record, home: scene.cloud)
        scene.gathered()
        scene.end()
        monkeypatch.setattr(scene.cloud, "still_warm", lambda instances: instances[:1])
        assert len(warm_nodes.warm_nodes(scene.store, scene.home)) == 1
        states = sorted(row.state for row in scene.store.instances("t1"))
        assert states == ["ended", "ended", "warm"]


def test_the_plan_counts_the_time_in_which_nodes_are_kept() -> None:
    plan = Plan("cloud", "big", 2, 1, price_per_hour=3.6, max_run_seconds=1000.0)
    assert plan.worst_case_cost == pytest.approx(2.0)
    assert dataclasses.replace(plan, warm_seconds=500.0).worst_case_cost == pytest.approx(3.0)
    capped = dataclasses.replace(plan, warm_seconds=500.0, max_cost=2.5)
    assert capped.worst_case_cost == 2.5
