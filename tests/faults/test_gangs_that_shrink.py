"""Gangs that shrink and grow on hosts: nodes are lost by a power cut, and come back."""

from __future__ import annotations

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
