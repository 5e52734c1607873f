"""Outages of 20 seconds, of every kind and in every phase: they cost nothing, and the first attempt completes.

`test_hosts_phases.py` has the short ones, and what dies for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.on_hosts import COUNT, HostGang, Site, pause, shell, soon
from tests.faults.test_hosts_phases import PHASES, Phase
from tests.sweeps import swept

OUTAGE = 20.0


@contextmanager
def cut(site: Site, what: str) -> Iterator[None]:
    """Nothing gets through on some of the ways between three machines."""
    leader, member = site.hosts[:2]
    if what == "leader":
        leader.partition()
    elif what == "member":
        member.partition()
    elif what == "pair":
        leader.partition(member)
    elif what == "client and leader":
        leader.partition(site.cluster.laptop)
    elif what == "client and member":
        member.partition(site.cluster.laptop)
    elif what == "all":
        leader.partition()
        member.partition()
    try:
        yield
    finally:
        leader.heal()
        member.heal()


CUTS = ["leader", "member", "pair", "client and leader", "client and member", "all"]
# Those that once ended a task stay among the quick ones, shorter.
QUICK = {("run", "leader")}
MASTER_PORT = 29500


def proves(gang: HostGang) -> bool:
    """Whether the leader holds the master port, as it does from the order to prepare until GO."""
    try:
        agent = gang.agent_on(0)
        lines = Path(f"/proc/{agent}/net/tcp6").read_text().splitlines()[1:]
    except (OSError, StopIteration):
        return False
    return any(f":{MASTER_PORT:04X} " in line.split(maxsplit=2)[1] + " " for line in lines)


MOMENTS = [*PHASES[:3], Phase("proofs", proves), *PHASES[3:]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("phase", "what"),
    swept(
        MOMENTS,
        CUTS,
        names=lambda phase, what: f"{what} in {phase.name}",
        quick=[(phase, what) for phase in MOMENTS for what in CUTS if (phase.name, what) in QUICK],
    ),
)
def test_an_outage_costs_nothing(site: Site, phase: Phase, what: str) -> None:
    seconds = 12.0 if (phase.name, what) in QUICK else OUTAGE
    if phase.name == "proofs":
        # They take a moment, so that there is one to meet them in.
        for host in site.hosts[:2]:
            host.delay(100)
    gang = site.submit(shell(COUNT))
    if not phase.early:
        gang.wait("running")
        site.go()
    soon(lambda: phase.is_now(gang))
    with cut(site, what):
        pause(seconds)
    gang.wait("running", "completed", timeout=120)
    site.go()
    record = gang.end(timeout=120)
    assert record.attempt == 1, gang.story()
    for rank in range(2):
        gang.counted_to_the_end(rank)
