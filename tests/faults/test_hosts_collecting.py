"""Cuts in the last seconds of a run: whatever is cut, and for how long, no result and no line is lost."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite import TaskFailed
from flowlite.api.adapters import settings_here
from flowlite.supervise.cleanup.reconcile import reconcile
from flowlite.supervise.process.launch import ensure_supervisors
from flowlite.testing.hosts import Cluster, Host, Laptop
from tests.faults.leaving import Leaving
from tests.faults.on_hosts import Site, pause
from tests.helpers import eventually, kill_processes_of_home, put_agent
from tests.sweeps import swept

KB, MB = 1000, 1_000_000


@pytest.fixture
def leaving(site: Site, tmp_path: Path) -> Callable[..., Leaving]:
    """Makes a gang, and waits until its ranks run."""

    def make(nodes: int = 3, size: int = 300 * KB, **options: object) -> Leaving:
        gang = Leaving(site, tmp_path / "program", nodes=nodes, size=size, **options)
        gang.wait("running")
        eventually(lambda: all(gang.counted(rank) > 0 for rank in range(nodes)))
        return gang

    return make


def test_a_member_that_only_its_leader_hears_loses_nothing(
    site: Site, leaving: Callable[..., Leaving]
) -> None:
    """What it holds comes through the leader, while the way to it is still cut."""
    gang = leaving()
    site.hosts[2].partition(site.cluster.laptop)
    site.go()
    record = gang.end(timeout=90)
    assert record.attempt == 1
    site.hosts[2].heal()
    gang.all_is_here()


@pytest.mark.slow
def test_a_task_is_not_completed_before_its_results_are_here(
    site: Site, leaving: Callable[..., Leaving]
) -> None:
    """Nobody hears the node: the task says what it waits for, also through a supervisor that is killed meanwhile."""
    gang = leaving()
    end_out_of_reach(site, gang, 2)
    what = "waiting for what is not here yet: results (300 kB) of node 2"
    eventually(lambda: what in gang.record.reason or gang.record.final)
    assert gang.record.state == "stopping", gang.story()
    gang.kill_supervisor()
    gang.wait("stopping")
    pause(20.0)
    assert what in gang.record.reason, gang.story()
    site.hosts[2].heal()
    assert gang.end(timeout=90).attempt == 1
    gang.all_is_here()
    assert not gang.homes()


@pytest.mark.slow
def test_results_that_did_not_come_in_time_are_brought_later(
    site: Site, leaving: Callable[..., Leaving], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "impatient"))
    gang = leaving()
    end_out_of_reach(site, gang, 2)
    record = gang.wait("failed", timeout=90)
    assert record.reason.startswith("every rank ended well, but results (300 kB) of node 2"), (
        record.reason
    )
    assert f"`flow result {gang.id}` brings them" in record.reason
    with pytest.raises(TaskFailed) as seen:
        gang.results()
    assert any(note.startswith("not here yet: node 2") for note in seen.value.__notes__)
    site.hosts[2].heal()
    # Neither whoever tidies up nor another task of this FLOW_HOME takes what is wanted still.
    with site.cluster.enter_laptop():
        reconcile(gang.store, site.home, here=settings_here)
    assert len(gang.homes()) == 1
    assert not list(gang.homes()[0].rglob("secret*"))
    # Nor does the host itself at the end of another task, when its clock has jumped.
    site.hosts[2].skew_clock(400 * 86400)
    other = Leaving(site, tmp_path / "other", nodes=len(site.hosts), size=KB)
    other.end(timeout=120)
    other.all_is_here()
    assert (len(gang.homes()), other.homes()) == (1, [])
    gang.all_is_here()
    assert gang.homes() == []
    assert gang.record.state == "failed"


@pytest.fixture
def small_home(hosts: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A FLOW_HOME on a disk of 30 MB."""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "small", str(home)], check=True)
    try:
        put_agent(home)
        monkeypatch.setenv("FLOW_HOME", str(home))
        yield Site(hosts, home, monkeypatch)
    finally:
        kill_processes_of_home(home)
        subprocess.run(["umount", "--lazy", str(home)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["room", "cancel"])
def test_results_that_do_not_fit_are_not_begun(small_home: Site, tmp_path: Path, then: str) -> None:
    site = small_home
    gang = Leaving(site, tmp_path / "program", nodes=2, size=40 * MB)
    gang.wait("running")
    site.go()
    told = "results (40 MB) of node 0"
    eventually(lambda: told in gang.record.reason or gang.record.final)
    assert gang.record.state == "stopping", gang.story()
    assert "No space left on device: 40 MB are to come, and " in gang.record.reason
    assert list(gang.paths.results.iterdir()) == []
    if then == "cancel":
        gang.store.request_cancel(gang.id)
        gang.end("cancelled")
        # Each host has its result still, and nothing else of the task.
        names = {path.name for home in gang.homes() for path in home.rglob("*") if path.is_file()}
        assert {"r0.result", "r1.result"} <= names
        assert not {name for name in names if "secret" in name or name.endswith(".json")}
        return
    size = ["mount", "-o", "remount,size=300m", str(site.home)]
    subprocess.run(size, check=True)
    assert gang.end().attempt == 1
    gang.all_is_here()


def end_out_of_reach(site: Site, gang: Leaving, node: int) -> None:
    """All ranks end well, as everybody has heard, and a node falls silent before anything of it was fetched."""
    site.hosts[node].partition(site.cluster.laptop)
    site.go()
    eventually(gang.paths.ended(1).exists)
    site.hosts[node].partition()


def cut(site: Site, which: str) -> list[tuple[Host, tuple[Host | Laptop, ...]]]:
    """Whose frames vanish, and from whom (all, where nobody is named)."""
    leader, member, other = site.hosts[0], site.hosts[1], site.hosts[2]
    laptop = site.cluster.laptop
    return {
        "client and member": [(member, (laptop,))],
        "client and leader": [(leader, (laptop,))],
        "client and all": [(host, (laptop,)) for host in (leader, member, other)],
        "leader and member": [(member, (leader,))],
        "two members": [(member, (other,))],
        "member and all": [(member, ())],
        "leader and all": [(leader, ())],
        "everybody": [(host, ()) for host in (leader, member, other)],
    }[which]


CUTS = [
    "client and member",
    "client and leader",
    "client and all",
    "leader and member",
    "two members",
    "member and all",
    "leader and all",
    "everybody",
]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("which", "seconds", "killed"),
    swept(
        CUTS,
        [8.0, 20.0, 60.0, 120.0],
        [False, True],
        names=lambda which, seconds, killed: (
            f"{which}, {seconds:.0f} s{', supervisor killed' if killed else ''}"
        ),
    ),
)
def test_no_cut_in_the_last_seconds_loses_anything(
    site: Site, leaving: Callable[..., Leaving], which: str, seconds: float, killed: bool
) -> None:
    gang = leaving()
    before = random.Random(f"{which} {seconds} {killed}").uniform(-0.3, 2.0)
    if before <= 0:
        site.go()
        pause(-before)
    for host, others in cut(site, which):
        host.partition(*others)
    pause(max(0.0, before))
    site.go()
    if killed:
        pause(2.0)
        # It may have all of it by now, through the leader.
        if not gang.record.final:
            gang.kill_supervisor()
    # Whoever looks starts it again.
    look_for(gang, seconds)
    for host, _ in cut(site, which):
        host.heal()
    record = gang.wait(timeout=150)
    if seconds <= 20:
        assert (record.state, record.attempt) == ("completed", 1), gang.story()
    if record.state == "completed":
        gang.all_is_here()
        return
    # It failed since the node was away for so long; what it wrote is not lost.
    assert record.state == "failed"
    assert " is lost: " in record.reason, gang.story()

    def brought() -> bool:
        with pytest.raises(TaskFailed) as seen:
            gang.results()
        return not getattr(seen.value, "__notes__", ())

    eventually(brought, every=1.0)
    for rank in range(3):
        gang.counted_to_the_end(rank)


def look_for(gang: Leaving, seconds: float) -> None:
    """For so long, as somebody does who waits for the task."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not gang.record.final:
        with gang.site.cluster.enter_laptop():
            ensure_supervisors(gang.store, gang.home, only=gang.id)
        time.sleep(0.5)
