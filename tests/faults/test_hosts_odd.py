"""Hosts that are not as they should be: the clock, the resolver, the disk, the Python, the number, the login."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from flowlite.api.adapters import settings_here
from flowlite.supervise.cleanup.reconcile import reconcile
from flowlite.testing.hosts import Cluster
from tests.faults.on_hosts import COUNT, HostGang, Site, pause, shell
from tests.helpers import assert_no_process_left, eventually


def texts(gang: HostGang, kind: str) -> list[str]:
    return [text for each, text in gang.events if each == kind]


@pytest.mark.parametrize(
    ("node", "seconds"),
    [
        pytest.param(0, 3600, marks=pytest.mark.slow, id="leader an hour ahead"),
        pytest.param(1, -3600, id="member an hour behind"),
    ],
)
def test_a_clock_that_is_an_hour_off_is_told_and_does_no_harm(
    site: Site, node: int, seconds: float
) -> None:
    site.hosts[node].skew_clock(seconds)
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    warned = eventually(lambda: texts(gang, "warning"))
    assert any("clock" in text for text in warned), warned
    # Longer than any silence that counts: no decision is made by a clock of two machines.
    pause(3.0)
    site.go()
    assert gang.end().attempt == 1
    for rank in range(2):
        gang.counted_to_the_end(rank)


GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item())
dist.destroy_process_group()  # Without it, torch 2.13 aborts now and then on a busy machine when Python ends.
"""


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_node_whose_directory_is_removed_while_it_runs_ends_all_the_same(
    site: Site, node: int
) -> None:
    """As a home that is purged at night, or by somebody who tidies up. Our program goes with it."""
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    eventually(lambda: min(gang.counted(rank) for rank in range(2)) > 20)
    shutil.rmtree(site.hosts[node].root / "root" / ".flowlite-node")
    site.go()
    assert gang.end().attempt == 1


@pytest.mark.slow
def test_a_name_server_that_does_not_answer_costs_no_time(site: Site) -> None:
    for host in site.hosts[:2]:
        host.silence_resolver()
    gang = site.submit([sys.executable, "-c", GLOO])
    gang.end()
    for rank in range(2):
        assert "sum 2.0" in gang.output(rank)


def test_a_host_whose_disk_is_full_is_named(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(hosts, flow_home, monkeypatch, hosts[:2])
    hosts[1].fill_disk()
    gang = site.submit(shell(COUNT))
    record = eventually(
        lambda: (found := gang.record) and "node01" in found.reason and found, timeout=90
    )
    assert "space" in record.reason, record.reason
    hosts[1].free_disk()
    if not record.final and record.state != "stopping":
        # It waits for a host that will do, and now there is one.
        gang.wait("running")
        site.go()
        gang.end()


@pytest.mark.slow
def test_a_disk_that_fills_up_during_the_run_holds_nothing_up_for_ever(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    eventually(lambda: gang.counted(1) > 10)
    site.hosts[1].fill_disk()
    pause(3.0)
    site.hosts[1].free_disk()
    site.go()
    assert gang.end().attempt == 1
    gang.counted_to_the_end(0)
    # What the worker itself could not write is not there; what it could is, and its last word.
    assert "end" in gang.output(1)


@pytest.mark.slow
def test_a_pool_with_too_few_hosts_waits_and_goes_on(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(hosts, flow_home, monkeypatch, hosts[:2])
    first = site.submit(shell(COUNT))
    first.wait("running")
    second = site.submit(shell("echo $RANK"))
    waits = eventually(lambda: "waiting for 2 places" in (found := second.record).reason and found)
    assert waits.state == "provisioning"
    assert first.id in waits.reason
    hosts[0].kill()
    first.end("failed")
    # One of two hosts is free now and the other does not answer: still too few.
    eventually(lambda: "node00" in second.record.reason)
    assert second.record.state == "provisioning"
    hosts[0].start()
    second.end(timeout=90)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_that_lets_in_but_runs_nothing_is_passed_over(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The plan asks as well; the supervisor is another process and has the usual patience.
    monkeypatch.setattr("provider_adapters.ssh.hosts._PROBE_SECONDS", 5.0)
    site = Site(hosts, flow_home, monkeypatch, hosts[:3])
    hosts[1].hang_logins()
    gang = site.submit(shell(COUNT))
    record = gang.wait("running", timeout=150)
    assert "node01" not in str(record.roster)
    site.go()
    gang.end()


def test_a_host_that_forwards_no_connections_is_named(site: Site) -> None:
    """It runs commands, but nobody can follow a leader there."""
    site.hosts[0].restart_sshd(AllowTcpForwarding="no")
    gang = site.submit(shell(COUNT))
    record = gang.wait("failed", timeout=90)
    assert "allow them there with AllowTcpForwarding" in record.reason, record.reason
    site.hosts[0].restart_sshd()


@pytest.mark.slow
def test_a_host_that_runs_nothing_any_more_holds_up_neither_run_nor_end(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    site.hosts[1].hang_logins()
    site.hosts[1].stop_sshd(sessions=True)
    site.hosts[1].start_sshd()
    pause(5.0)
    assert gang.record.state == "running"
    site.go()
    assert gang.wait(timeout=90).state == "completed", gang.story()
    for rank in range(2):
        gang.counted_to_the_end(rank)
    site.hosts[1].restart_sshd()
    with site.cluster.enter_laptop():
        reconcile(gang.store, site.home, here=settings_here)
    assert_no_process_left(gang.id)


def other_python() -> str:
    """A Python of another minor version that is on this machine, "" if there is none."""
    versions = Path("~/.pyenv/versions").expanduser()
    here = f"{sys.version_info.major}.{sys.version_info.minor}."
    for path in sorted(versions.glob("3.1[23].*/bin/python3")):
        if not path.parent.parent.name.startswith(here):
            return str(path)
    return ""


@pytest.mark.slow
def test_a_host_with_a_different_python_is_named(
    fresh_hosts: object, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_python()
    if not other:
        pytest.skip("no other Python here")
    keep = [sys.prefix, sys.base_prefix, Path(__file__).parents[2], Path(other).parents[1]]
    cluster = fresh_hosts(2, python={1: other}, keep=keep)  # type: ignore[operator]
    entries = f'["node00", {{host = "node01", python = "{other}"}}]'
    site = Site(cluster, flow_home, monkeypatch, settings="", entries=entries)
    gang = site.submit(shell(COUNT))
    record = gang.end("failed")
    version = Path(other).parents[1].name.rpartition(".")[0]
    assert f"node 1 ({record.roster[1]}) has Python {version}" in record.reason
    assert "use one minor version" in record.reason
