"""A bad network: a client that is gone for minutes, delay and loss, a log reader that is cut off again and again."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import time
from pathlib import Path

import pytest

from flowlite.node.protocol import tls
from flowlite.node.rendezvous import supervisor_client
from flowlite.node.rendezvous.supervisor_client import SupervisorClient
from tests.faults.on_hosts import COUNT, Site, pause, shell
from tests.helpers import eventually
from tests.node.agents import SECRET, RealGang
from tests.node.proxy import Proxy


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_client_is_cut_off_for_minutes_and_nothing_stops(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    laptop = site.cluster.laptop
    eventually(lambda: gang.counted(0) > 20)
    laptop.partition()
    seen = [gang.counted(rank) for rank in range(2)]
    told = eventually(
        lambda: "the nodes cannot be reached since" in (found := gang.record).reason and found,
        timeout=90,
    )
    assert told.state == "running"
    pause(100.0)
    assert gang.record.state == "running"
    assert [gang.counted(rank) for rank in range(2)] == seen
    laptop.heal()
    # What was written meanwhile is all there, from the exact byte on.
    eventually(lambda: min(gang.counted(rank) for rank in range(2)) > seen[0] + 1000)
    eventually(lambda: gang.record.reason == "all ranks started")
    site.go()
    assert gang.end().attempt == 1
    for rank in range(2):
        gang.counted_to_the_end(rank)
    assert not [kind for kind, _ in gang.events if kind in ("suspect", "lost")]


@pytest.mark.slow
def test_the_gang_ends_while_the_client_is_cut_off(site: Site) -> None:
    # The one that fails is the last: its end is that of the others.
    gang = site.submit(shell(f"{COUNT}; sleep $((3 * RANK)); exit $RANK"))
    gang.wait("running")
    site.cluster.laptop.partition()
    site.go()
    pause(25.0)
    assert gang.record.state == "running"
    site.cluster.laptop.heal()
    assert gang.end("failed").reason == "first failure: node 1, rank 1: exited with 1"
    for rank in range(2):
        gang.counted_to_the_end(rank)


@pytest.mark.slow
def test_a_task_is_cancelled_while_the_client_is_cut_off(site: Site) -> None:
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    site.cluster.laptop.partition()
    eventually(lambda: "cannot be reached since" in gang.record.reason)
    gang.store.request_cancel(gang.id)
    pause(3.0)
    # Whoever cannot reach the nodes cannot say that they have stopped.
    assert not gang.record.final
    site.cluster.laptop.heal()
    gang.end("cancelled", timeout=90)


@pytest.mark.slow
def test_hosts_that_refuse_us_in_the_middle_are_named_and_nothing_stops(site: Site) -> None:
    """As when a certificate expires while a task runs: only the user can mend that."""
    gang = site.submit(shell(COUNT))
    gang.wait("running")
    files = [host.root / "root" / ".ssh" / "authorized_keys" for host in site.hosts]
    kept = [file.read_text() for file in files]
    for file in files:
        file.write_text("")
    for host in site.hosts:
        host.restart_sshd(sessions=True)
    told = eventually(
        lambda: "logging in as 'root' was refused" in (found := gang.record).reason and found,
        timeout=90,
    )
    assert told.state == "running"
    assert told.reason.startswith("the nodes cannot be reached since ")
    assert "nothing was stopped" in told.reason
    for file, text in zip(files, kept, strict=True):
        file.write_text(text)
    eventually(lambda: gang.record.reason == "all ranks started", timeout=90)
    site.go()
    assert gang.end().attempt == 1
    for rank in range(2):
        gang.counted_to_the_end(rank)


def slow_network(site: Site) -> None:
    """100 ms each way between any two, and 5 % of the frames lost on the way."""
    for machine in (*site.cluster, site.cluster.laptop):
        machine.delay(50, loss_percent=2.5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_delay_and_loss_stop_nothing(site: Site) -> None:
    slow_network(site)
    gang = site.submit(shell(COUNT))
    gang.wait("running", timeout=120)
    eventually(lambda: gang.counted(0) > 60, timeout=120)
    site.cluster.laptop.partition()
    pause(6.0)
    site.cluster.laptop.heal()
    gang.kill_supervisor()
    gang.wait("running", timeout=90)
    site.go()
    assert gang.end(timeout=120).attempt == 1
    for rank in range(2):
        gang.counted_to_the_end(rank)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_host_dies_in_a_slow_network(site: Site, node: int) -> None:
    slow_network(site)
    gang = site.submit(shell(COUNT))
    gang.wait("running", timeout=120)
    site.hosts[node].power_cut()
    record = gang.end("failed", timeout=120)
    assert f"node {node} ({record.roster[node]})" in record.reason


# The log reader

WRITE = """
import hashlib, os, random, sys, time
rank, out = os.environ["RANK"], sys.stdout.buffer
chance, size, written = random.Random(int(rank)), 0, hashlib.sha256()
while not os.path.exists(sys.argv[1]):
    block = chance.randbytes(chance.randint(1, 12_000))
    size += out.write(block)
    written.update(block)
    out.flush()
    time.sleep(0.01)
with open(sys.argv[1] + "." + rank, "w") as note:
    print(size, written.hexdigest(), file=note)
"""


class Uneven(random.Random):
    """Most connections break soon; some live long enough for a chunk of the largest size."""

    def randint(self, a: int, b: int) -> int:
        return a + int((b - a) * self.random() ** 6)


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("breaks", [200, pytest.param(1000, marks=pytest.mark.hours)])
def test_disconnects_of_the_log_reader_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: int
) -> None:
    """Encrypted, at bytes drawn at random: in handshakes, in headers, in the middle of a chunk."""
    monkeypatch.setattr(supervisor_client, "RETRY_FIRST", 0.001)
    monkeypatch.setattr(supervisor_client, "RETRY_MOST", 0.01)
    go = tmp_path / "go"
    call = {"kind": "command", "argv": [sys.executable, "-c", WRITE, str(go)]}
    with RealGang(tmp_path, call, nodes=2, processes_per_node=2, tls=True) as gang:
        gang.start()
        place = gang.tell_leader()

        async def read() -> int:
            async with Proxy((place["address"], place["port"])) as proxy:
                proxy.random = Uneven(7)
                gang.link = _reader(gang, proxy)
                await gang.until("started")
                proxy.budget = (500, 400_000)
                proxy.tear()
                following = asyncio.create_task(gang.until("ended", within=800))
                while proxy.breaks < breaks:
                    await asyncio.sleep(0.05)
                    assert not following.done(), following
                proxy.budget = None
                go.touch()
                await following
                await gang.finish_after_end(within=300)
                return proxy.breaks

        assert asyncio.run(read()) >= breaks
        for node in range(2):
            for rank in range(2 * node, 2 * node + 2):
                written = gang.paths[node].stream(rank, "out").read_bytes()
                assert len(written) > 500_000
                assert hashed(bytes(gang.streams[f"{rank}.out"])) == hashed(written)
        gang.assert_nothing_left()


def _reader(gang: RealGang, proxy: Proxy) -> SupervisorClient:
    def keep(rank: int, node: int, stream: str, offset: int, when: float, blob: bytes) -> None:
        kept = gang.streams.setdefault(f"{rank}.{stream}", bytearray())
        assert len(kept) == offset
        kept += blob

    return SupervisorClient(
        task=gang.task,
        attempt=gang.attempt,
        secret=SECRET,
        dial=lambda: asyncio.open_connection(*proxy.address),
        on_chunk=keep,
        offsets=lambda: {name: len(kept) for name, kept in gang.streams.items()},
        beat=0.2,
        new_tls=tls.client(gang.paths[0].certificate),
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_sessions_of_the_leader_are_thrown_out_again_and_again(site: Site) -> None:
    """The whole way of a line, from the host's disk through SSH to the file here."""
    text = f"exec {sys.executable} -c '{WRITE}' /tmp/go"
    gang = site.submit(shell(text), processes_per_node=2)
    gang.wait("running")
    leader, chance = site.hosts[0], random.Random(3)
    for _ in range(40):
        leader.restart_sshd(sessions=True)
        time.sleep(chance.uniform(0.0, 0.6))
    assert gang.record.state == "running", gang.record.reason
    site.go()
    record = gang.end()
    assert record.attempt == 1
    for rank in range(4):
        # What the worker says of itself.
        host = next(
            h for h in site.hosts if h.exec(["test", "-e", f"/tmp/go.{rank}"]).returncode == 0
        )
        size, digest = host.exec(["cat", f"/tmp/go.{rank}"]).stdout.split()
        (found,) = gang.paths.logs.glob(f"a1.n*.r{rank}.out")
        assert (int(size), digest) == (found.stat().st_size, hashed(found.read_bytes()))
