"""The store cannot be written, as on a full disk: agents are left alone, and machines of a cancelled task are ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowlite.errors import StoreError
from flowlite.provider import Instance, Plan
from flowlite.state import clock
from flowlite.state.store import Store
from flowlite.supervise.process.supervisor import Supervisor
from tests.supervise.test_provision import Cloud
from tests.test_store import task

GRACE = 30.0
FULL = StoreError("the disk is full")


class Scene:
    """A supervisor whose gang runs on two machines, on a disk that is full for some seconds.

    Attributes:
        now: Its monotonic clock.
        tried: When it turned to its nodes.
        ended: When it had its machines ended.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, *, price: float = 2.0) -> None:
        self.now, self.tried, self.ended = 1000.0, list[float](), list[float]()
        self.room_at = self.cancel_at = float("inf")
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        store = Store(home / "state.db")
        plan = Plan("cloud", "big", 2, 1, price_per_hour=price).to_json()
        config = {"grace_seconds": GRACE}
        row = task("t1", state="running", attempt=1, roster=["a", "b"], plan=plan, config=config)
        store.create_task(row)
        lease = store.acquire_lease("t1", "me", 60)
        assert lease is not None
        (home / "tasks" / "t1").mkdir(parents=True)
        self.cloud = Cloud(home / "state.db")
        self.cloud.made["a"] = [Instance("a", "t1"), Instance("b", "t1")]
        self.supervisor = Supervisor(store, home, store.get_task("t1"), lease, self.cloud)
        terminate = self.cloud.terminate

        def end(instances: list[Instance]) -> None:
            self.ended.append(self.now)
            terminate(instances)

        async def turn_to_nodes() -> None:
            self.tried.append(self.now)
            if self.now < self.room_at:
                raise FULL
            self.supervisor._conclude("failed", "seen")
            self.supervisor._handed_back = True

        async def pause(seconds: float) -> None:
            self.now += seconds
            if self.now >= self.cancel_at:
                self.supervisor._cancel()

        def write() -> None:
            if self.now < self.room_at:
                raise FULL

        monkeypatch.setattr(self.cloud, "terminate", end)
        monkeypatch.setattr(self.supervisor, "_go_on", turn_to_nodes)
        monkeypatch.setattr(self.supervisor, "_pause", pause)
        monkeypatch.setattr(self.supervisor._leading, "renew", write)

    def lead(self) -> None:
        asyncio.run(self.supervisor._live())


def test_agents_are_left_alone_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose gang has ended stay while they are talked to, and their machines are charged."""
    scene = Scene(tmp_path, monkeypatch)
    scene.room_at = 5000.0
    scene.lead()
    assert len(scene.tried) == 2
    assert scene.tried[1] == pytest.approx(scene.room_at, abs=5.0)
    assert not scene.ended


def test_the_machines_of_a_cancelled_task_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch)
    scene.cancel_at, scene.room_at = 2000.0, 9000.0
    scene.lead()
    assert len(scene.ended) == 1
    # The ranks have their time to stop, and are told to meanwhile.
    assert 2000.0 + GRACE <= scene.ended[0] <= 2000.0 + 2 * GRACE
    told = [at for at in scene.tried if 2000.0 <= at < scene.ended[0]]
    assert len(told) > 2
    assert scene.tried[-2] < scene.ended[0]
    assert scene.tried[-1] == pytest.approx(scene.room_at, abs=5.0)


def test_the_machines_are_ended_though_the_store_cannot_even_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for SQLite's index of its log, reading fails as well."""

    def unreadable(*words: object) -> None:
        raise FULL

    scene = Scene(tmp_path, monkeypatch)
    scene.cancel_at, scene.room_at = 2000.0, 4000.0
    monkeypatch.setattr(Store, "make_sure_of", unreadable)
    scene.lead()
    assert len(scene.ended) == 1


def test_nodes_that_cost_nothing_are_told_for_as_long_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch, price=0.0)
    scene.cancel_at, scene.room_at = 2000.0, 3000.0
    scene.lead()
    assert not scene.ended
    assert len(scene.tried) > 100


@pytest.mark.parametrize("keeps_gangs", [False, True], ids=["hosts", "jobs"])
def test_a_gang_on_nodes_that_cost_nothing_is_followed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_gangs: bool
) -> None:
    """A job of Slurm ends with its agents, and the results that are on its nodes would count as lost."""
    scene = Scene(tmp_path, monkeypatch, price=0.0)
    monkeypatch.setattr(scene.cloud, "keeps_gangs", keeps_gangs)
    scene.room_at = 2000.0
    scene.lead()
    assert not scene.ended
    assert len(scene.tried) > 100
