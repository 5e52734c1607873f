"""Nodes that cannot talk to each other: found and named before GO, whatever keeps them apart."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.agent import go_checks
from flowlite.node.preflight import connectivity
from flowlite.node.preflight.connectivity import ConnectivityCheck, authenticate, others
from flowlite.node.protocol.framing import CHECK_ROLE, ServerSession
from flowlite.node.protocol.messages import pack_places
from flowlite.node.rendezvous.member_client import PrepareError
from flowlite.node.system import retrying
from flowlite.node.system.retrying import RetryWindow
from tests.faults.on_hosts import Site, shell

HERE, THERE = "127.0.0.1", "127.0.0.2"
SECRET = b"s" * 32


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up soon, and takes addresses of this machine for those of others."""
    for name in ("REFUSED", "NEVER_REACHED"):
        monkeypatch.setattr(retrying, name, 1.0)
    monkeypatch.setattr(retrying, "AGAIN", 0.05)
    monkeypatch.setattr(connectivity, "BLOCK_SECONDS", 1.0)
    monkeypatch.setattr(connectivity, "LOOPBACK", ("none",))


def order(*places: tuple[str, int | None]) -> dict[str, Any]:
    return {"connectivity": pack_places([at for at, _ in places], [port for _, port in places])}


def meeting_of(
    rank: int, nodes: int = 2, secret: bytes = SECRET, longest: float = 60.0
) -> ConnectivityCheck:
    """A node's part; everybody is heard all the time."""
    return ConnectivityCheck("t", 1, rank, nodes, secret, silence=lambda _: 0.0, longest=longest)


@contextlib.asynccontextmanager
async def two(secret: bytes = SECRET) -> AsyncIterator[tuple[ConnectivityCheck, ConnectivityCheck]]:
    nodes = meeting_of(0), meeting_of(1, secret=secret)
    for node, address in zip(nodes, (HERE, THERE), strict=True):
        await node.open(address)
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()


@pytest.mark.usefixtures("patient")
def test_nodes_that_reach_each_other_are_let_go() -> None:
    async def meet() -> None:
        async with two() as (one, other):
            told = order((HERE, one.port), (THERE, other.port))
            await asyncio.gather(one.reach(told), other.reach(told))

    asyncio.run(meet())


@pytest.mark.usefixtures("patient")
def test_a_port_that_is_refused_is_named() -> None:
    async def meet() -> None:
        async with two() as (one, other):
            port = other.port
            other.close()
            await one.reach(order((HERE, one.port), (THERE, port)))

    with pytest.raises(
        PrepareError, match=r"node 1 \(127.0.0.2, port \d+\) cannot be reached.*allow TCP"
    ):
        asyncio.run(meet())


@pytest.mark.usefixtures("patient")
def test_a_master_port_that_cannot_be_reached_is_named() -> None:
    with socket.socket() as held:
        held.bind((HERE, 0))
        port = held.getsockname()[1]
        told = {"master_addr": HERE, "master_port": port}
        with pytest.raises(PrepareError, match=rf"MASTER_PORT {port} of the leader.*Allow TCP"):
            asyncio.run(go_checks.reach_master(told, RetryWindow(lambda: 0.0, 60.0)))


@pytest.mark.usefixtures("patient")
def test_a_master_port_that_answers_again_in_time_is_reached() -> None:
    """What is refused or out for a while is tried again."""
    told = {"master_addr": HERE, "master_port": 0}

    async def come_back() -> None:
        with socket.socket() as held:
            held.bind((HERE, 0))
            told["master_port"] = held.getsockname()[1]
            reaching = asyncio.create_task(
                go_checks.reach_master(told, RetryWindow(lambda: 9.0, 60.0))
            )
            await asyncio.sleep(0.3)
            assert not reaching.done()
            held.listen()
            await reaching

    asyncio.run(come_back())


REFUSED, TIMED_OUT = ConnectionRefusedError(111, "Connection refused"), TimeoutError()


@pytest.mark.parametrize(
    ("error", "silence", "reached", "seconds", "said"),
    [
        (TIMED_OUT, 0.0, False, retrying.NEVER_REACHED - 1, ""),
        (TIMED_OUT, 0.0, False, retrying.NEVER_REACHED, "a firewall drops"),
        (TIMED_OUT, 0.0, True, retrying.NEVER_REACHED, ""),
        (TIMED_OUT, 9.0, False, 299.0, ""),
        (TIMED_OUT, 9.0, False, 300.0, "was heard 9 s ago, and does not answer now"),
        (TIMED_OUT, 0.0, True, 300.0, "was reached before, and does not answer now"),
        (REFUSED, 0.0, False, retrying.REFUSED - 1, ""),
        (REFUSED, 0.0, True, retrying.REFUSED, "a firewall refuses it"),
    ],
)
def test_an_outage_is_told_from_a_firewall(
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    silence: float,
    reached: bool,
    seconds: float,
    said: str,
) -> None:
    now = [100.0]
    monkeypatch.setattr("flowlite.node.system.retrying.time.monotonic", lambda: now[0])
    trial = RetryWindow(lambda: silence, 300.0)
    trial.reached = reached
    assert trial.failed(error) is None
    now[0] += seconds
    found = trial.failed(error)
    assert bool(said) is (found is not None)
    if found is not None:
        assert said in found.text
        assert found.firewall is ("firewall" in said)


def test_an_outage_in_between_counts_for_no_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    now, silence = [100.0], [0.0]
    monkeypatch.setattr("flowlite.node.system.retrying.time.monotonic", lambda: now[0])
    trial = RetryWindow(lambda: silence[0], 300.0)
    for silence[0] in (0.0, 20.0, 0.0, 20.0):
        now[0] += retrying.NEVER_REACHED - 1
        assert trial.failed(TIMED_OUT) is None


def test_an_outage_late_in_something_that_takes_long_is_waited_for_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is when terabytes of checkpoints are brought back."""
    now, tries = [100.0], [0]
    monkeypatch.setattr("flowlite.node.system.retrying.time.monotonic", lambda: now[0])
    monkeypatch.setattr("flowlite.node.system.retrying.time.sleep", lambda _: None)
    trial = RetryWindow(lambda: 0.0, 300.0)

    def bring() -> int:
        now[0] += 600.0
        tries[0] += 1
        if tries[0] in (2, 4, 5):
            raise TIMED_OUT
        return tries[0]

    assert [retrying.through_outages(bring, trial) for _ in range(2)] == [1, 3]
    with pytest.raises(TimeoutError):
        retrying.through_outages(bring, trial)
    assert tries == [5]


@pytest.mark.usefixtures("patient")
def test_full_packets_that_are_lost_are_told_from_a_closed_port() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await authenticate(reader, writer, ServerSession(SECRET, "t", (CHECK_ROLE,)))
        await asyncio.sleep(30)

    async def meet() -> None:
        async with two() as (one, _):
            server = await asyncio.start_server(swallow, THERE, 0)
            port = server.sockets[0].getsockname()[1]
            async with server:
                await one.reach(order((HERE, one.port), (THERE, port)))

    with pytest.raises(
        PrepareError, match=r"64 kB do not get through: full packets are lost.*MTU of \d+"
    ):
        asyncio.run(meet())


@pytest.mark.usefixtures("patient")
def test_whoever_does_not_know_the_secret_gets_no_answer() -> None:
    async def meet() -> None:
        async with two(secret=b"another secret, as long") as (one, other):
            await one.reach(order((HERE, one.port), (THERE, other.port)))

    with pytest.raises(PrepareError, match="hangs up"):
        asyncio.run(meet())


@pytest.mark.usefixtures("patient")
def test_a_recorded_check_is_worth_nothing() -> None:
    """Somebody on the network repeats what a node has sent, and gets no block."""
    recorded = bytearray()

    async def meet() -> bytes:
        async with two() as (one, other):

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                from_other, to_other = await asyncio.open_connection(THERE, other.port)

                async def back() -> None:
                    while data := await from_other.read(65536):
                        writer.write(data)

                going_back = asyncio.create_task(back())
                while data := await reader.read(65536):
                    recorded.extend(data)
                    to_other.write(data)
                going_back.cancel()
                to_other.transport.abort()

            server = await asyncio.start_server(pass_on, THERE, 0)
            async with server:
                await one.reach(order((HERE, None), (THERE, server.sockets[0].getsockname()[1])))
            reader, writer = await asyncio.open_connection(THERE, other.port)
            writer.write(bytes(recorded))
            answer = bytearray()
            with contextlib.suppress(ConnectionError):
                while data := await asyncio.wait_for(reader.read(65536), 30):
                    answer += data
            writer.transport.abort()
            return bytes(answer)

    assert len(asyncio.run(meet())) < 1024 < len(recorded)


def test_nodes_of_one_machine_and_nodes_that_do_not_listen_are_not_asked() -> None:
    async def meet() -> None:
        node = meeting_of(0, 3)
        await node.open("127.0.0.1")
        assert node.port is None
        await node.reach(order(("127.0.0.1", None), ("127.0.0.1", None), ("10.255.255.1", None)))
        await node.reach({})

    asyncio.run(meet())


@pytest.mark.parametrize("nodes", [2, 5, 16])
def test_in_small_gangs_everybody_tries_everybody(nodes: int) -> None:
    for rank in range(nodes):
        assert others(rank, nodes) == [each for each in range(nodes) if each != rank]


@pytest.mark.parametrize("nodes", [17, 100, 4096])
def test_in_large_gangs_a_few_each_connect_all(nodes: int) -> None:
    reached, edge = {0}, {0}
    while edge:
        edge = {other for rank in edge for other in others(rank, nodes)} - reached
        reached |= edge
    assert reached == set(range(nodes))
    assert max(len(others(rank, nodes)) for rank in range(nodes)) <= 12


# Real hosts


@pytest.fixture
def site(hosts: Any, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(hosts, flow_home, monkeypatch)


@contextlib.contextmanager
def dropped(host: Any, rule: str) -> Iterator[None]:
    """Has a host's kernel drop what this rule of nft fits, as a firewall does."""
    table = "add table inet troubles; add chain inet troubles in { type filter hook input priority 0; }; "
    done = host.exec(["nft", f"{table} add rule inet troubles in {rule} drop"])
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        host.exec(["nft", "delete table inet troubles"])


@pytest.mark.timeout(300)
def test_a_firewall_between_two_nodes_is_found_before_the_start(site: Site) -> None:
    last, other = site.hosts[2], site.hosts[1]
    with dropped(last, f"ip saddr {other.address} tcp flags & (syn | ack) == syn"):
        gang = site.submit(shell("echo started"), nodes=3)
        record = gang.end("failed", timeout=200)
    assert f"({last.address}, port " in record.reason
    assert "does not answer: a firewall drops what is sent there" in record.reason
    assert "allow TCP between the nodes, ports " in record.reason
    assert not list(gang.paths.logs.glob("*.out"))


def test_packets_that_are_too_large_for_the_way_are_found_before_the_start(site: Site) -> None:
    last, other = site.hosts[1], site.hosts[2]
    with dropped(last, f"ip saddr {other.address} ip length > 1000"):
        gang = site.submit(shell("echo started"), nodes=3)
        record = gang.end("failed")
    # Which of the two says it first is open.
    assert any(f"({host.address}, port " in record.reason for host in (last, other))
    assert "64 kB do not get through: full packets are lost on the way" in record.reason
