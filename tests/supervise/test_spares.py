"""Spare machines while an attempt runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.errors import CapacityUnavailable
from flowlite.state import clock
from flowlite.supervise.money.cost import cost_of
from flowlite.supervise.process.spares import Spares
from flowlite.supervise.record.task_view import TaskView
from tests.supervise.test_gang_growth import Growing


async def nothing_left(roster: Sequence[str]) -> bool:
    return False


@pytest.mark.parametrize("answers", [True, False])
def test_a_spare_that_was_given_up_is_charged_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Also where there is no room for another one: what it seems to cost counts against `max_cost`."""
    scene = Growing(tmp_path, 2, 2, spares=1)
    monkeypatch.setattr(clock, "now", lambda home=None: scene.now)
    scene.market.room = 3
    scene.attempt()
    scene.market.room = 0
    provisioner = scene.provisioner()
    ((name, spare),) = provisioner.spares().items()
    if not answers:
        scene.market.take_away([name])
    record = scene.store.get_task("t1")
    task: Any = SimpleNamespace(
        asked=TaskView.of(record),
        journal=SimpleNamespace(record=record, step=lambda *_, **__: None),
        provisioner=provisioner,
        agent=(Path("/a"), ""),
    )

    async def lose() -> None:
        await provisioner.end_without_rank(spare, answers=answers)
        with suppress(CapacityUnavailable):
            await Spares(task)._go_on()

    asyncio.run(lose())
    rows = {row.id: row for row in scene.store.instances("t1")}
    assert rows[name].ended_at == scene.now
    before = cost_of(rows.values(), scene.now)
    gang = [row for row in rows.values() if row.id != name]
    hour = cost_of(gang, scene.now + 3600) - cost_of(gang, scene.now)
    assert cost_of(rows.values(), scene.now + 3600) == pytest.approx(before + hour)
    # The gang must lose nothing by the launch of another one, such as its price.
    assert scene.store.intents("t1")[-1].data["beside"]


def test_spares_are_kept_after_an_error_that_nobody_expects() -> None:
    told: list[tuple[str, str]] = []
    calls = 0
    task: Any = SimpleNamespace(
        asked=SimpleNamespace(plan=SimpleNamespace(spares=1)),
        journal=SimpleNamespace(
            note=lambda kind, text: told.append((kind, text)), record=SimpleNamespace(roster=[])
        ),
        provisioner=SimpleNamespace(spares=dict, end_given_back=nothing_left),
    )
    spares = Spares(task)

    async def make_good() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("out of bounds")
        spares._closing.set()

    async def keep() -> None:
        spares._pause = 0.001
        spares._make_good = make_good  # type: ignore[method-assign]
        spares.begin()
        assert spares._keeping is not None
        await spares._keeping

    asyncio.run(keep())
    assert calls == 2
    text = "a spare is missing: ValueError: out of bounds (a defect of flowlite)"
    assert told == [("spare", text)]
