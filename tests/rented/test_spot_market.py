"""A spot market in the box that takes a machine again and again, and gives some back, and a gang of 2 to 4 in it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.spot_market import FEWEST, KIND, MOST, ZONE, alive, job, settings
from flowlite import Flow, Task
from flowlite.testing.cloud import CloudInABox
from tests.checkpoints.remote import newest
from tests.helpers import eventually

SECONDS = 180.0
# A machine is taken so many seconds after the last one, or when the gang has made a checkpoint since, if that is later.
EVERY = 20.0


@dataclass(frozen=True, slots=True)
class Taking:
    """A machine that is taken.

    Attributes:
        node: Its rank.
        room: How many more machines there are then.
        left: The size of the next attempt.
        notice: Seconds of notice.
    """

    node: int
    room: int
    left: int
    notice: float


TAKINGS = (
    Taking(node=2, room=0, left=3, notice=0.0),
    # The leader.
    Taking(node=0, room=0, left=2, notice=0.0),
    Taking(node=1, room=3, left=4, notice=0.0),
    Taking(node=3, room=0, left=3, notice=120.0),
)
MANY = 10**9


@pytest.fixture
def kept(box: CloudInABox) -> Iterator[Path]:
    """Where the checkpoints are copied to, which all machines see."""
    place = box.cluster.shared / "spot-market"
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.no_random_faults
@pytest.mark.timeout(900)
def test_a_gang_in_a_spot_market_ends_its_job(
    box: CloudInABox, flow_home: Path, kept: Path
) -> None:
    (flow_home / "config.toml").write_text(settings())
    box.aws.capacity(KIND, ZONE, MOST)
    task: Task[None] = Flow().run(job((FEWEST, MOST), MANY, f"/mnt/shared/{kept.name}"))
    rosters, saved, taken = [], [0], time.monotonic()
    for number, taking in enumerate(TAKINGS, 1):
        rosters.append(_running(task, number))
        eventually(lambda: _step(kept) > saved[-1], timeout=SECONDS, what="a checkpoint")
        # The market has its own pace.
        time.sleep(max(0.0, taken + EVERY - time.monotonic()))
        saved.append(_step(kept))
        box.aws.capacity(KIND, ZONE, taking.room)
        box.aws.preempt([rosters[-1][taking.node]], taking.notice)
        taken = time.monotonic()
    rosters.append(_running(task, len(TAKINGS) + 1))
    eventually(lambda: _step(kept) > saved[-1], timeout=SECONDS, what="a checkpoint")
    (kept / "enough").touch()
    task.wait(timeout=SECONDS * 2)
    story = "\n".join(each.text for each in task.events())
    assert task.status == "completed", story
    assert task.record.retries_used == 0, story
    # Only where too few are left, the gang waits before machines are launched that may be taken away as well.
    pauses = [each.text for each in task.events() if "a new attempt begins in" in each.text]
    assert len(pauses) <= 1, pauses
    _check_ranks(task, saved)
    _check_rosters(rosters)
    _check_money(box, task)


def _running(task: Task[None], attempt: int) -> list[str]:
    """The nodes of an attempt, by rank, once its ranks run."""

    def running() -> list[str] | None:
        record = task.record
        assert not record.final, record.reason
        runs = record.attempt == attempt and record.state == "running"
        return list(record.roster) if runs else None

    return eventually(running, timeout=SECONDS, every=0.2, what=f"attempt {attempt}")


def _step(kept: Path) -> int:
    """The last step that a complete checkpoint has."""
    return max((int(Path(name).stem) for name in newest(kept)), default=0)


def _check_ranks(task: Task[None], saved: list[int]) -> None:
    """All ranks of each attempt say who they are, and begin where the last checkpoint ended, or later."""
    said = [json.loads(line.text) for line in task.logs() if line.text.startswith("{")]
    sizes = [MOST, *(taking.left for taking in TAKINGS)]
    for attempt, (size, step) in enumerate(zip(sizes, saved, strict=True), 1):
        mine: list[dict[str, Any]] = [each for each in said if each["attempt"] == attempt]
        assert sorted(each["rank"] for each in mine) == list(range(size)), mine
        assert {each["world"] for each in mine} == {size}
        assert {each["restarts"] for each in mine} == {attempt - 1}
        assert all(each["bounds"] == [FEWEST, MOST] for each in mine)
        begun = {each["from"] for each in mine}
        assert len(begun) == 1, "all ranks begin at the same step"
        assert begun.pop() >= step


def _check_rosters(rosters: list[list[str]]) -> None:
    """The nodes that are left keep their order, and a new one takes the place of the one that it replaces."""
    for before, after, taking in zip(rosters, rosters[1:], TAKINGS, strict=False):
        assert len(after) == taking.left
        lost = before[taking.node]
        assert lost not in after
        stay = [name for name in before if name != lost]
        assert [name for name in after if name in stay] == stay
        if taking.room:
            assert after.index(stay[0]) == before.index(stay[0])


def _check_money(box: CloudInABox, task: Task[None]) -> None:
    """The bill is within the cap, and nothing is left."""
    bill = box.aws.bill()
    dollars = sum(each["instance"] + each["extras"] for each in bill)
    cap = task.record.plan["max_cost"]
    assert dollars <= cap
    assert task.estimated_cost <= cap
    eventually(lambda: alive(box, "pending", "running", "shutting-down") == [], timeout=SECONDS)
