"""The search of a task for a place, from its history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowlite.provider import Candidate, Plan
from flowlite.state import clock
from flowlite.state.store import Store
from flowlite.supervise.attempt import unreachable_nodes
from flowlite.supervise.failover import Kind, PlaceFailed
from flowlite.supervise.process.journal import Journal
from flowlite.supervise.process.place_search import PlaceSearch
from flowlite.supervise.record.lifecycle import TaskEvent
from tests.crash.timeline import Timeline
from tests.test_store import task


class _NothingThere:
    """The provisioner of a place that never has room."""

    def is_launching(self) -> bool:
        return False

    async def end_all(self) -> list[Any]:
        return []


def test_a_search_for_days_keeps_its_first_and_its_latest_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round left five entries, a thousand a day, which every supervisor and every `flow status TASK` read."""
    monkeypatch.setattr(unreachable_nodes, "begin_if_left", lambda *_: None)
    timeline = Timeline()
    with clock.running_on(timeline):
        store = Store(tmp_path / "state.db")
        plans = [Plan("own", f"big-{number}", 2, 1, price_per_hour=2.0) for number in (1, 2)]
        store.create_task(
            task(
                "t1",
                plan=plans[0].to_json(),
                candidates=[Candidate(each).to_json() for each in plans],
                created_at=clock.now(),
            )
        )
        lease = store.acquire_lease("t1", "me", 1e9)
        assert lease is not None

        async def sleep(seconds: float) -> None:
            timeline.sleep(seconds)

        def search() -> tuple[Journal, PlaceSearch]:
            journal = Journal(store, lease, store.get_task("t1"))
            there: Any = _NothingThere()
            return journal, PlaceSearch(store, tmp_path, journal, there, there, None, sleep)

        async def seek(rounds: int) -> None:
            journal, found = search()
            journal.step(TaskEvent.BEGIN, nodes=2)
            while rounds:
                if await found.may_launch():
                    why = f"no room for so many (request {timeline.now:.0f})"
                    found.note_failure(PlaceFailed(why, Kind.FULL, 2, clock.now()))
                    rounds -= 1
                elif found.has_moved:
                    # As for the supervisor of the next place.
                    journal, found = search()

        asyncio.run(seek(60))
        told = [each.text for each in store.events("t1")]
        store.close()
    for number in (1, 2):
        of_place = [text for text in told if text.startswith("leaving") and f"big-{number}" in text]
        assert len(of_place) == 2
        assert "request 0" in of_place[0] or number == 2
        assert of_place[0] != of_place[1]
    assert len(told) <= 14
