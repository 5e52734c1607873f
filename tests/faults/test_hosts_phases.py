"""Every part of a gang on real hosts is killed, paused and cut off in every phase of a task.

What only hiccups stops nothing: the first attempt completes, and no line of output is lost or doubled. What dies is
named, and the task ends; nothing is left on the hosts that live.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from flowlite.testing.hosts import Host
from tests.faults.on_hosts import COUNT, HostGang, Site, pause, shell, soon
from tests.sweeps import swept


@dataclass(frozen=True)
class Phase:
    """A moment in the life of a task, and whether its workers may go on before or only after it."""

    name: str
    is_now: Callable[[HostGang], object]
    early: bool = True


PHASES = [
    Phase("bootstrap", lambda gang: gang.directories(0)),
    Phase("join", lambda gang: gang.has(0, "leader.json")),
    Phase("barrier", lambda gang: gang.has(1, "leader.json")),
    Phase("run", lambda gang: gang.record.state == "running"),
    Phase("result", lambda gang: gang.has(0, "r0.out", "end"), early=False),
    Phase("teardown", lambda gang: gang.record.outcome, early=False),
]


def pause_host(host: Host) -> None:
    host.pause()
    pause(3.0)
    host.resume()


def partition_host(host: Host) -> None:
    host.partition()
    pause(3.0)
    host.heal()


def partition_client(gang: HostGang) -> None:
    gang.site.cluster.laptop.partition()
    pause(8.0)
    gang.site.cluster.laptop.heal()


def pause_supervisor(gang: HostGang) -> None:
    with suppress(AssertionError, ProcessLookupError):
        gang.signal_supervisor(signal.SIGSTOP)
        pause(2.0)
        gang.signal_supervisor(signal.SIGCONT)


def kill_supervisor(gang: HostGang) -> None:
    # In the last phases it may just have ended by itself.
    with suppress(AssertionError, ProcessLookupError):
        gang.signal_supervisor(signal.SIGKILL)


def kill_sshd(host: Host) -> None:
    host.stop_sshd(sessions=True)
    pause(3.0)
    host.start_sshd()


def pause_sshd(host: Host) -> None:
    found = [pid for pid in host.pids() if _name(pid) == "sshd"]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            pause(3.0)


def partition_sshd(gang: HostGang, node: int) -> None:
    """The host and the client do not see each other; the hosts do."""
    host = gang.site.hosts[node]
    host.partition(gang.site.cluster.laptop)
    pause(4.0)
    host.heal()


HICCUPS: dict[str, Callable[[HostGang], None]] = {
    "leader paused": lambda gang: pause_host(gang.site.hosts[0]),
    "leader cut off": lambda gang: partition_host(gang.site.hosts[0]),
    "other paused": lambda gang: pause_host(gang.site.hosts[1]),
    "other cut off": lambda gang: partition_host(gang.site.hosts[1]),
    "client cut off": partition_client,
    "supervisor killed": kill_supervisor,
    "supervisor paused": pause_supervisor,
    "sshd of the leader killed": lambda gang: kill_sshd(gang.site.hosts[0]),
    "sshd of the other killed": lambda gang: kill_sshd(gang.site.hosts[1]),
    "sshd of the leader paused": lambda gang: pause_sshd(gang.site.hosts[0]),
    "sshd of the leader cut off": lambda gang: partition_sshd(gang, 0),
    "sshd of the other cut off": lambda gang: partition_sshd(gang, 1),
}
# One of each kind for those who do not run everything.
QUICK = {("run", "client cut off"), ("join", "supervisor killed"), ("result", "leader cut off")}


@pytest.mark.parametrize(
    ("phase", "what"),
    swept(
        PHASES,
        list(HICCUPS),
        names=lambda phase, what: f"{what} in {phase.name}",
        quick=[
            (phase, what) for phase in PHASES for what in HICCUPS if (phase.name, what) in QUICK
        ],
    ),
)
def test_a_hiccup_stops_nothing(site: Site, phase: Phase, what: str) -> None:
    gang = site.submit(shell(COUNT))
    if not phase.early:
        gang.wait("running")
        site.go()
    soon(lambda: phase.is_now(gang))
    HICCUPS[what](gang)
    gang.wait("running", timeout=90)
    site.go()
    record = gang.end(timeout=90)
    assert record.attempt == 1, gang.story()
    for rank in range(2):
        gang.counted_to_the_end(rank)


@pytest.mark.parametrize(
    ("phase", "node"),
    [
        pytest.param(
            phase,
            node,
            id=f"{name} in {phase.name}",
            marks=() if (phase.name, node) == ("run", 1) else pytest.mark.slow,
        )
        for phase in PHASES
        for node, name in enumerate(("leader", "other"))
    ],
)
def test_a_host_is_killed(site: Site, phase: Phase, node: int) -> None:
    gang = site.submit(shell(COUNT))
    if not phase.early:
        gang.wait("running")
        site.go()
    soon(lambda: phase.is_now(gang))
    site.hosts[node].kill()
    # What had ended well before may be all there was to do.
    ends = "failed" if phase.early else "failed|completed"
    record = gang.end(ends, timeout=90)
    if record.state == "failed":
        # By its instance, or by its address where another node has found first that it cannot be reached.
        named = (f"node {node} ({each}" for each in (record.roster[node], site.hosts[node].address))
        assert any(each in record.reason for each in named), gang.story()
    assert record.attempt == 1


def _name(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""
