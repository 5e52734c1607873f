"""Gangs that shrink and grow on hosts: nodes are lost by a power cut, and come back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.testing.hosts import Cluster
from tests.faults.on_hosts import HostGang, Site, shell
from tests.helpers import eventually

# Says where it is in this attempt, and goes on until it may go; the second attempt fails when it is asked to.
SAY = (
    'echo "$FLOW_NODE_RANK of $FLOW_NUM_NODES ($FLOW_NUM_NODES_MIN to $FLOW_NUM_NODES_MAX), '
    'rank $RANK of $WORLD_SIZE, restart $FLOW_RESTART_COUNT on $(hostname)"; '
    "while [ ! -e /tmp/go ]; do [ -e /tmp/fail$FLOW_ATTEMPT ] && exit 3; sleep 0.05; done"
)


def said(gang: HostGang, attempt: int) -> list[str]:
    """What each rank of an attempt has said, in the order of their ranks."""
    found = {
        int(path.name.split(".")[2][1:]): path.read_text().strip()
        for path in gang.paths.logs.glob(f"a{attempt}.n*.r*.out")
    }
    return [found[rank] for rank in sorted(found)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_host_is_lost_and_comes_back(
    fresh_hosts: Callable[[int], Cluster], flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(fresh_hosts(3), flow_home, monkeypatch)
    gang = site.submit(
        shell(SAY), nodes=(2, 8), heal_seconds=2, settle_seconds=2, retries={"max_retries": 1}
    )
    gang.wait("running")
    names = [host.name for host in site.hosts]
    eventually(lambda: len(said(gang, 1)) == 3 and all(said(gang, 1)))
    assert said(gang, 1) == [
        f"{n} of 3 (2 to 3), rank {n} of 3, restart 0 on {names[n]}" for n in range(3)
    ]
    site.hosts[0].power_cut()
    eventually(lambda: len(said(gang, 2)) == 2 and all(said(gang, 2)), timeout=120)
    # The leader is gone: the others keep their order and have the ranks from 0 on.
    assert said(gang, 2) == [
        f"{n} of 2 (2 to 3), rank {n} of 2, restart 1 on {names[n + 1]}" for n in range(2)
    ]
    assert gang.record.retries_used == 0
    site.hosts[0].start()
    (site.hosts[1].root / "tmp" / "fail2").touch()
    eventually(lambda: len(said(gang, 3)) == 3 and all(said(gang, 3)), timeout=120)
    assert said(gang, 3) == [
        f"{n} of 3 (2 to 3), rank {n} of 3, restart 2 on {names[(n + 1) % 3]}" for n in range(3)
    ]
    site.go()
    assert gang.end().retries_used == 1


# Counts in steps, each of which is a checkpoint, and ends when it is asked to. The first attempt's first step is 1.
STEPS = """
import os, time
from pathlib import Path
from flowlite import should_stop
last, step = Path(os.environ["FLOW_CHECKPOINT_DIR"]) / "last", 0
if last.exists():
    step = int(last.read_text())
names = "FLOW_NODE_RANK", "FLOW_NUM_NODES", "RANK", "WORLD_SIZE", "FLOW_RESTART_COUNT"
print(*(os.environ[name] for name in names), "on", os.uname().nodename, "from", step, flush=True)
while not Path("/tmp/go").exists():
    step += 1
    if os.environ["RANK"] == "0":
        partial = last.with_name("last.part")
        partial.write_text(str(step))
        partial.rename(last)
    if should_stop():
        print("stopped at", step, flush=True)
        break
    time.sleep(0.1)
"""


def begun(gang: HostGang, attempt: int) -> list[list[str]]:
    """The words that each rank of an attempt has said first."""
    return [text.split("\n")[0].split() for text in said(gang, attempt)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_gang_grows_at_its_next_step_when_a_host_comes_back(
    fresh_hosts: Callable[[int], Cluster], flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(fresh_hosts(3), flow_home, monkeypatch)
    gang = site.submit(
        [sys.executable, "-c", STEPS],
        nodes=(2, 3),
        heal_seconds=2,
        settle_seconds=1,
        grow="checkpoint",
        checkpoint={"path": "/flowlite-steps", "sync": "/mnt/shared/steps", "every": 1},
    )
    gang.wait("running")
    eventually(lambda: len(said(gang, 1)) == 3 and all(said(gang, 1)))
    site.hosts[2].power_cut()
    eventually(lambda: len(said(gang, 2)) == 2 and all(said(gang, 2)), timeout=180)
    names = [host.name for host in site.hosts]
    assert [words[:7] for words in begun(gang, 2)] == [
        [str(n), "2", str(n), "2", "1", "on", names[n]] for n in range(2)
    ]
    site.hosts[2].start()
    eventually(lambda: len(said(gang, 3)) == 3 and all(said(gang, 3)), timeout=240)
    # Those that stay keep their ranks, and all go on from where they were asked to stop.
    stopped = [int(text.split("stopped at ")[1].split()[0]) for text in said(gang, 2)]
    assert len(set(stopped)) == 1
    assert [words[:7] for words in begun(gang, 3)] == [
        [str(n), "3", str(n), "3", "2", "on", names[n]] for n in range(3)
    ]
    assert {int(words[8]) for words in begun(gang, 3)} == {stopped[0]}
    site.go()
    record = gang.end()
    assert record.retries_used == 0
    assert "the gang goes on with 3 nodes" in [event.text for event in gang.store.events(gang.id)]
