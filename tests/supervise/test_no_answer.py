"""A provider that does not answer has not refused: a supervisor that takes a gang over waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowlite.errors import PermissionRefused, ProviderError
from flowlite.provider import Instance, Plan
from flowlite.state import clock
from flowlite.state.store import Store
from flowlite.supervise.process.supervisor import Supervisor
from tests.supervise.test_provision import Cloud
from tests.test_store import task

BOOT = 1200.0


class Silent(Cloud):
    """Fails at each listing until so many seconds have passed."""

    def __init__(self, path: Path, seconds: float, error: ProviderError) -> None:
        super().__init__(path)
        self._until = clock.monotonic() + seconds
        self._error = error

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        if clock.monotonic() < self._until:
            raise self._error
        return super().list_instances(task_id)


def lead(home: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, error: ProviderError) -> str:
    """How a task ends whose machines boot while its new supervisor gets no listing; "" if it goes on."""
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    store = Store(home / "state.db")
    plan = Plan("cloud", "big", 3, 1, price_per_hour=2.0, start_seconds=BOOT)
    store.create_task(task("t1", state="provisioning", roster=["a", "b", "c"], plan=plan.to_json()))
    lease = store.acquire_lease("t1", "me", 60)
    assert lease is not None
    (home / "tasks" / "t1").mkdir(parents=True)
    cloud = Silent(home / "state.db", seconds, error)
    supervisor = Supervisor(store, home, store.get_task("t1"), lease, cloud)

    async def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(supervisor, "_pause", pause)

    async def go_on() -> None:
        while now[0] < 1000.0 + 2 * BOOT and not store.get_task("t1").outcome:
            await supervisor._go_on()
            if cloud.calls:
                return

    asyncio.run(go_on())
    return store.get_task("t1").reason if store.get_task("t1").outcome else ""


def test_an_outage_of_minutes_ends_no_gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lead(tmp_path, monkeypatch, 600.0, ProviderError("503 Service Unavailable")) == ""


def test_it_is_given_up_when_machines_should_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = lead(tmp_path, monkeypatch, 9 * BOOT, ProviderError("503 Service Unavailable"))
    assert said == "cloud: 503 Service Unavailable"


def test_a_refusal_is_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = lead(tmp_path, monkeypatch, 600.0, PermissionRefused("AccessDenied"))
    assert said == "cloud: AccessDenied"
