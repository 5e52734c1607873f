"""Hosts that die without a word, fall silent or are cut off: what is concluded, and that no rank runs twice."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite.connect.ssh import link
from flowlite.testing.hosts import Cluster, Host
from tests.faults.on_hosts import COUNT, HostGang, Site, pause, shell
from tests.helpers import assert_no_process_left, eventually, processes_of

# Writes its attempt into a file of the shared directory, again and again, until it may go.
WRITE = "echo $$; while [ ! -e /tmp/go ]; do echo $FLOW_ATTEMPT >> /mnt/shared/rank$RANK; sleep 0.05; done"


def kinds(gang: HostGang) -> list[str]:
    return [kind for kind, _ in gang.events]


@pytest.mark.parametrize(
    "node", [pytest.param(0, id="leader", marks=pytest.mark.slow), pytest.param(1, id="member")]
)
def test_a_power_cut_ends_the_task_and_names_the_node(site: Site, node: int) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    site.hosts[node].power_cut()
    record = gang.end("failed", timeout=90)
    leader = ", the leader," if node == 0 else ""
    assert record.reason.startswith(f"node {node} ({record.roster[node]}){leader} is lost: "), (
        gang.story()
    )
    assert gang.counted(1 - node) > 0


@pytest.mark.slow
def test_a_gang_of_one_is_lost_if_another_host_of_the_pool_answers(site: Site) -> None:
    gang = site.submit(shell(COUNT), nodes=1)
    gang.wait("running")
    site.hosts[0].power_cut()
    assert "is lost" in gang.end("failed", timeout=90).reason


@pytest.mark.slow
def test_a_gang_of_one_in_a_pool_of_one_is_not_given_up(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows whether it is the host or the way there, so nothing is concluded."""
    site = Site(hosts, flow_home, monkeypatch, hosts[:1])
    gang = site.submit(shell(COUNT), nodes=1)
    gang.wait("running")
    hosts[0].partition()
    told = "the node cannot be reached since"
    eventually(lambda: gang.record.reason.startswith(told))
    pause(20.0)
    assert gang.record.state == "running"
    hosts[0].heal()
    eventually(lambda: gang.record.reason == "all ranks started")
    site.go()
    assert gang.end().attempt == 1
    gang.counted_to_the_end(0)


@pytest.mark.slow
def test_a_leader_that_hangs_for_good_is_lost(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    site.hosts[0].pause()
    record = gang.wait(timeout=90)
    assert record.state == "failed"
    assert "the leader, is lost" in record.reason
    site.hosts[0].resume()
    # It was frozen past its time: it stops by itself as soon as it wakes.
    eventually(lambda: not workers_on(site.hosts[0], gang))


@pytest.mark.slow
def test_an_agent_that_hangs_on_a_host_that_lives_ends_the_gang(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    os.kill(gang.agent_on(1), signal.SIGSTOP)
    # Its process is there, so nobody calls it dead; it is given up when it must have stopped its workers by itself.
    record = gang.wait("stopping", timeout=90)
    assert f"node 1 ({record.roster[1]}) is lost" in record.reason
    gang.end("failed", timeout=90)


def workers_on(host: Host, gang: HostGang) -> list[int]:
    """Workers of a task that run on a host."""
    return [pid for pid in processes_of(gang.id) if pid in host.pids() and _is_worker(pid)]


def _is_worker(pid: int) -> bool:
    try:
        return b"RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_partitioned_host_stops_its_workers_before_others_take_their_place(
    site: Site, node: int
) -> None:
    gang = site.submit(shell(WRITE), retries=1)
    gang.wait("running")
    shared = site.cluster.shared / f"rank{node}"
    eventually(shared.exists)
    host = site.hosts[node]
    host.partition()
    record = eventually(
        lambda: (found := gang.record).attempt == 2 and found.state == "running" and found,
        timeout=120,
        every=0.005,
    )
    assert workers_on(host, gang) == []
    assert "fencing" not in kinds(gang)
    assert any("it must be certain" in text for _, text in gang.events)
    # The vacated rank has another host, the other rank has the one it had.
    assert record.roster[node].split("-")[2:3] == ["node02"]
    assert f"node0{1 - node}" in record.roster[1 - node]
    host.heal()
    pause(5.0)
    site.go()
    assert gang.wait(timeout=90).state == "completed", gang.story()
    attempts = shared.read_text().split()
    # Nothing of the first attempt was written after anything of the second.
    assert attempts == sorted(attempts)
    assert set(attempts) == {"1", "2"}
    # The agent of a leader that was given up would wait ten minutes to be asked for its logs.
    assert_no_process_left(gang.id, timeout=90)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_lost_host_is_cleaned_as_soon_as_it_can_be_reached(site: Site, node: int) -> None:
    """Also when its task has been over for long, and nobody calls `flow`."""
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    # Whoever submits keeps connections for half a minute; those are not the supervisor's.
    link.close_idle()
    host = site.hosts[node]
    host.partition()
    assert gang.wait(timeout=90).state == "failed", gang.story()
    assert host_is_leased(host)
    pause(10.0)
    host.heal()
    eventually(lambda: not host_is_leased(host), every=0.2)
    assert_no_process_left(gang.id)
    # Neither are the sessions of sshd that the outage has cut off, which would learn of it much later.
    eventually(lambda: not sessions_on(host), every=0.5)
    # Whoever came back has gone, too.
    eventually(lambda: not list(site.home.glob("revisiting-*")))


def sessions_on(host: Host) -> list[str]:
    """Command lines of couriers, and of sessions of sshd."""
    found = []
    for pid in host.pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "@notty" in words or " courier " in words:
                found.append(words)
    return found


def host_is_leased(host: Host) -> bool:
    """Whether somebody holds the host."""
    return "@flowlite-host" in host.exec(["ss", "-xlH"]).stdout


@pytest.mark.slow
def test_a_host_that_was_killed_is_replaced_and_not_leased_again(site: Site) -> None:
    gang = site.submit(shell(COUNT), retries=1)
    gang.wait("running")
    site.hosts[0].kill()
    eventually(lambda: gang.record.state == "stopping")
    # It comes back, and says itself that nothing runs there any more: that is waited for, and not for the clock.
    site.hosts[0].start()
    record = eventually(
        lambda: (found := gang.record).attempt == 2 and found.state == "running" and found,
        timeout=90,
    )
    assert "node00" not in str(record.roster)
    site.go()
    gang.end()
    for rank in range(2):
        gang.counted_to_the_end(rank, attempt=2)


def test_a_host_that_was_restarted_is_used_again_where_there_is_no_other(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(hosts, flow_home, monkeypatch, hosts[:2])
    gang = site.submit(shell(COUNT), retries=1)
    gang.wait("running")
    restart(site.hosts[1])
    record = eventually(lambda: (found := gang.record).attempt == 2 and found)
    assert [each.split("-")[2] for each in record.roster] == ["node00", "node01"]
    gang.wait("running")
    site.go()
    gang.end()
    for rank in range(2):
        gang.counted_to_the_end(rank, attempt=2)
    nothing_is_left(site)


@pytest.mark.slow
def test_a_host_that_was_restarted_is_replaced_and_nothing_is_left_on_it(site: Site) -> None:
    gang = site.submit(shell(COUNT), retries=1)
    gang.wait("running")
    restart(site.hosts[1])
    record = eventually(lambda: (found := gang.record).attempt == 2 and found)
    assert [each.split("-")[2] for each in record.roster] == ["node00", "node02"]
    gang.wait("running")
    site.go()
    gang.end()
    nothing_is_left(site)


def restart(host: Host) -> None:
    """Restarts a host so fast that it is never missed: it says itself that nothing of ours runs there."""
    host.kill()
    host.start()


def nothing_is_left(site: Site) -> None:
    """No host has a directory of a task, and no record says that a task has a host."""
    for host in site.hosts:
        tasks = host.root / "root" / ".flowlite-node" / "tasks"
        eventually(lambda at=tasks: not at.exists() or not list(at.iterdir()))
    eventually(lambda: not list((site.home / "ssh" / "tasks").iterdir()))


def test_a_worker_that_dies_is_the_first_failure(site: Site) -> None:
    gang = site.submit(shell(f"[ $RANK = 1 ] && sleep 1 && exit 7; {COUNT}"))
    assert gang.end("failed").reason == "first failure: node 1, rank 1: exited with 7"


def test_a_crash_starts_the_gang_again_on_the_same_hosts(site: Site) -> None:
    gang = site.submit(shell(f"[ $FLOW_ATTEMPT$RANK = 11 ] && exit 7; {COUNT}"), retries=1)
    eventually(lambda: gang.record.attempt == 2 and gang.record.state == "running")
    first = [event for event in gang.store.events(gang.id) if event.kind == "first_failure"]
    assert [event.text for event in first] == ["first failure: node 1, rank 1: exited with 7"]
    site.go()
    record = gang.end()
    assert ["node00" in record.roster[0], "node01" in record.roster[1]] == [True, True]
    assert len(gang.store.intents(gang.id)) == 1
    for rank in range(2):
        gang.counted_to_the_end(rank, attempt=2)


@pytest.mark.slow
def test_preemption_starts_again_and_is_no_failure(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    os.kill(gang.agent_on(1), signal.SIGTERM)
    eventually(lambda: gang.record.attempt == 2 and gang.record.state == "running")
    site.go()
    assert gang.end().retries_used == 0


def test_the_rendezvous_listens_on_the_private_address_only_and_is_encrypted(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    leader, other = site.hosts[:2]
    (directory,) = gang.directories(0)
    port = int(json.loads((directory / "leader.json").read_bytes())["port"])
    listening = leader.exec(["ss", "-ltnH", f"sport = :{port}"]).stdout.split()
    assert listening[3] == f"{leader.address}:{port}"
    agents = [gang.agent_on(node) for node in range(2)]
    assert all("/_ssl." in Path(f"/proc/{agent}/maps").read_text() for agent in agents)
    (beside,) = gang.directories(1)
    assert (directory / "rendezvous.key").stat().st_mode & 0o777 == 0o600
    assert not (beside / "rendezvous.key").exists()
    assert not gang.paths.certificate_key(1).exists()
    said = other.exec(
        ["sh", "-c", f"echo hello | timeout 2 nc -w 1 {leader.address} {port} | wc -c"]
    )
    assert said.stdout.strip() == "0" or said.returncode != 0
    site.go()
    gang.end()
