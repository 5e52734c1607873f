"""Gangs on this machine that grow while they run: there is room again, and supervisors are killed meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gangs import Gang, submit
from tests.helpers import eventually, whole_lines

# Each rank says where it begins and where it stops. The file `step` is the checkpoint.
STEPS = """
import os, time
from pathlib import Path
from flowlite import should_stop
home, rank = Path(os.environ["FLOW_HOME"]), os.environ["RANK"]
saved = home / "step"
step = int(saved.read_text()) if saved.exists() else 0
print(rank, "of", os.environ["WORLD_SIZE"], "from", step, flush=True)
while not (home / "go").exists():
    step += 1
    if {asks} and should_stop():
        if rank == "0":
            partial = saved.with_suffix(".part")
            partial.write_text(str(step))
            partial.rename(saved)
        print("stopped at", step, flush=True)
        break
    time.sleep(0.05)
"""

# How many points a supervisor passes at least from there being room until the larger gang runs.
FEWEST_POINTS = 20
# `make test-all` kills at every fourth, `make test-hours` at all others.
ONE_IN = 4


@pytest.fixture(autouse=True)
def room(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "no_room"))
    make_room(flow_home, 2)


def make_room(home: Path, nodes: int) -> None:
    partial = home / "room.part"
    partial.write_text(str(nodes))
    partial.rename(home / "room")


def growing(home: Path, *, asks: bool = True, grow: str = "checkpoint") -> Gang:
    argv = [sys.executable, "-c", STEPS.format(asks=asks)]
    return submit(home, argv, nodes=3, fewest=2, settle_seconds=0.1, heal_seconds=0.1, grow=grow)


def said(gang: Gang, attempt: int) -> list[list[str]]:
    """The lines of each rank of an attempt."""
    found = {
        int(path.name.split(".")[2][1:]): whole_lines(path)
        for path in gang.paths.logs.glob(f"a{attempt}.n*.r*.out")
    }
    return [found[rank] for rank in sorted(found)]


def begun(gang: Gang, attempt: int, ranks: int) -> list[str]:
    """What the ranks of an attempt say first."""

    def all_said() -> bool:
        gang.wait("running")
        return len(said(gang, attempt)) == ranks and all(said(gang, attempt))

    eventually(all_said, timeout=240, what=f"attempt {attempt} of {gang.id}")
    return [lines[0] for lines in said(gang, attempt)]


def told(gang: Gang) -> list[str]:
    return [text for kind, text in gang.events if kind == "growth"]


def assert_grown(gang: Gang) -> None:
    """The third node has joined, and all three go on from where the two were asked to stop."""
    lines = begun(gang, 2, 3)
    eventually(lambda: all(len(each) == 2 for each in said(gang, 1)))
    (stopped,) = {each[1] for each in said(gang, 1)}
    step = stopped.removeprefix("stopped at ")
    assert lines == [f"{n} of 3 from {step}" for n in range(3)]


def end(gang: Gang) -> None:
    """It ends well, without a retry, and nothing is left."""
    (gang.home / "go").touch()
    assert gang.end().retries_used == 0
    assert [each for each in gang.store.intents(gang.id) if each.state == "open"] == []


@pytest.mark.timeout(600)
def test_it_grows_where_it_asks_whether_to_stop_when_there_is_room(flow_home: Path) -> None:
    gang = growing(flow_home)
    assert begun(gang, 1, 2) == ["0 of 2 from 0", "1 of 2 from 0"]
    before = gang.record.roster
    make_room(flow_home, 3)
    assert_grown(gang)
    assert gang.record.roster[:2] == before
    assert "the gang goes on with 3 nodes" in told(gang)
    end(gang)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("grow", ["attempt", "checkpoint"])
def test_a_program_that_does_not_ask_goes_on(flow_home: Path, grow: str) -> None:
    gang = growing(flow_home, asks=False, grow=grow)
    begun(gang, 1, 2)
    make_room(flow_home, 3)
    if grow == "checkpoint":
        what = "no process calls should_stop()"
        eventually(lambda: any(what in each for each in told(gang)), timeout=240)
    rows = [row.id for row in gang.store.instances(gang.id) if row.ended_at is None]
    assert sorted(rows) == sorted(gang.record.roster)
    end(gang)
    assert gang.record.attempt == 1
    assert grow == "checkpoint" or not told(gang)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(n, marks=pytest.mark.hours if n % ONE_IN != 1 else pytest.mark.slow)
        for n in range(1, 33)
    ],
)
def test_its_supervisor_is_killed_at_every_step(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    marker = flow_home / "killed"
    monkeypatch.setenv("KILL_AT", str(at))
    monkeypatch.setenv("KILL_MARKER", str(marker))
    gang = growing(flow_home)
    begun(gang, 1, 2)
    (flow_home / "armed").touch()
    make_room(flow_home, 3)
    assert_grown(gang)
    if at <= FEWEST_POINTS:
        assert marker.exists(), "it has fewer points"
    assert sorted(row.id for row in gang.store.instances(gang.id) if row.ended_at is None) == (
        sorted(gang.record.roster)
    )
    end(gang)
