"""Spare machines while an attempt runs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flowlite.supervise.process.spares import Spares


def test_spares_are_kept_after_an_error_that_nobody_expects() -> None:
    told: list[tuple[str, str]] = []
    calls = 0
    task: Any = SimpleNamespace(
        asked=SimpleNamespace(plan=SimpleNamespace(spares=1)),
        journal=SimpleNamespace(note=lambda kind, text: told.append((kind, text))),
        provisioner=SimpleNamespace(spares=dict),
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
