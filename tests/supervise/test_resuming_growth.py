"""A task whose supervisor and machines are gone while a bid was open with which its gang was to grow.

Nobody has asked for machines since: the bid is withdrawn, and the task waits for `flow resume`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from flowlite.errors import ProviderError
from flowlite.provider import LaunchPending
from flowlite.state import clock
from flowlite.supervise.process import main, resuming
from flowlite.supervise.record.lifecycle import SPARE
from tests.supervise.test_gang_growth import DAY, Growing

HOUR = 3600.0


class Left(Growing):
    """The scene an hour after its supervisor was killed. No machine of its gang is left, and its bid is open."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.now = DAY
        self.grow_at_checkpoints()

    def be_left(self, *, noticed: bool, spare_too: bool = False) -> None:
        """
        Args:
            noticed: Whether its supervisor had recorded the end of the machines before it was killed.
            spare_too: Whether it was also about to launch a spare.
        """
        self.market.room = 2
        roster = self.attempt()
        self.market.queues = True
        with pytest.raises(LaunchPending):
            self.launch(3)
        if spare_too:
            data = {"task_id": "t1", "count": 1, "purpose": SPARE}
            self.store.put_intent(self.lease, "t1-launch-9", "launch", data)
        self.market.take_away(roster)
        self.market.room = 0
        ended = self.provisioner()._gone(self.store.instances("t1")) if noticed else []
        self.store.transition(self.lease, "provisioning", "", instances=ended)
        self.store.release_lease(self.lease)
        long_ago = self.now - HOUR
        with sqlite3.connect(self.home / "state.db") as db:
            db.execute("UPDATE tasks SET created_at = ?, lease_expires = ?", (long_ago, long_ago))

    def lead(self, *, launches: bool) -> None:
        """A supervisor, from its beginning to its end."""
        main.lead("t1", self.home, owner="another", launches=launches)

    @property
    def needs_resume(self) -> bool:
        """Whether commands say that it waits for `flow resume`, and start no supervisor."""
        return resuming.needs_resume(self.store, self.store.get_task("t1"))


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    made = Left(tmp_path)
    monkeypatch.setattr(clock, "now", lambda home=None: made.now)
    monkeypatch.setattr(main, "provider_of_task", lambda record, home: made.market)
    return made


# A client that waits has its supervisor launch what it needs, but not for a task that was left for long.
@pytest.mark.parametrize(("noticed", "launches"), [(True, True), (True, False), (False, False)])
def test_the_bid_is_withdrawn_and_nothing_is_launched_unasked(
    left: Left, noticed: bool, launches: bool
) -> None:
    left.be_left(noticed=noticed)
    assert not left.needs_resume, "a supervisor withdraws the bid first"
    # Whoever asked for nodes now would get them.
    left.market.room = 9
    left.lead(launches=launches)
    assert left.market.list_instances() == []
    assert left.open_launches() == []
    assert left.store.is_parked("t1")
    assert left.needs_resume
    record = left.store.get_task("t1")
    assert (record.state, record.attempt, record.lease_owner) == ("provisioning", 1, None)
    assert not left.store.has_machines("t1")
    # Whoever looks after it later asks for nothing either.
    left.now += HOUR
    left.lead(launches=True)
    assert list(left.market.made) == ["t1-launch-1"]


def test_a_bid_that_cannot_be_withdrawn_yet_is_tried_again(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    left.be_left(noticed=True)
    tries: list[int] = []
    end = left.market.terminate

    def terminate(instances: list[object]) -> None:
        tries.append(len(instances))
        if len(tries) < 3:
            assert left.open_launches(), "it is recorded as withdrawn, and may win"
            raise ProviderError("the market does not answer")
        end(instances)  # type: ignore[arg-type]

    monkeypatch.setattr(left.market, "terminate", terminate)
    left.lead(launches=True)
    assert tries == [1, 1, 1]
    assert left.market.list_instances() == []
    assert left.needs_resume
    assert list(left.market.made) == ["t1-launch-1"]


def test_its_bid_is_not_taken_for_what_another_open_launch_has_brought(left: Left) -> None:
    left.be_left(noticed=True, spare_too=True)
    left.market.room = 9
    left.lead(launches=True)
    assert list(left.market.made) == ["t1-launch-1"]
    assert left.market.list_instances() == []
    assert left.needs_resume
