"""Contents from host to host, with networks of their own: a firewall between them, and one that loses its power."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.supervise.attempt.distribution import FROM_NODES, Distribution
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.threads import Threads
from flowlite.testing.hosts import Cluster
from tests.faults.on_hosts import Site, shell
from tests.helpers import eventually, put_agent

pytestmark = pytest.mark.slow

_HOME = "/var/tmp/flow-spread"
_CACHE = f"{_HOME}/blobs"


class Ground:
    """Hosts as nodes, and a content that they lack."""

    def __init__(self, hosts: Cluster, home: Path, megabytes: int) -> None:
        self.hosts = hosts
        self.content = home / "content"
        self.content.write_bytes(os.urandom(megabytes << 20))
        self.sha256 = hashlib.sha256(self.content.read_bytes()).hexdigest()
        self.nodes = [self._node(number) for number in range(len(hosts))]
        put_agent(home)
        agent = build_agent_zip(home)
        for node in self.nodes:
            node.connection.put_cached(agent[0], node.agent, agent[1], mode=0o700)
        self.sent: list[int] = []
        self.among = Distribution(
            "t1",
            1,
            [node.instance.id for node in self.nodes],
            b"the secret of the task, as it is",
            Threads(),
            asyncio.Event(),
            project=False,
            files={self.sha256: megabytes << 20},
        )

    def _node(self, number: int) -> Node:
        host = self.hosts[number]
        settings = SimpleNamespace(home=_HOME, cache=_CACHE, python=sys.executable, bind="")
        found = SimpleNamespace(
            settings=settings,
            instance=SimpleNamespace(id=host.name, address=host.address),
            connection=SshConnection(resolve_target(host.name, self.hosts.ssh_config)),
            agent=f"{_HOME}/agent.pyz",
            program=(sys.executable, "-I", "-S", f"{_HOME}/agent.pyz"),
            name=host.name,
            rank=number,
        )
        return cast(Node, found)

    def send(self, node: Node) -> None:
        if not self.has(node.rank):
            self.sent.append(node.rank)
            node.connection.put_cached(self.content, f"{_CACHE}/{self.sha256}", self.sha256)

    def has(self, rank: int) -> bool:
        path = self.hosts[rank].root / f"{_CACHE}/{self.sha256}".lstrip("/")
        return path.exists() and path.read_bytes() == self.content.read_bytes()

    async def bring(self, node: Node) -> None:
        await self.among.bring(node)
        await asyncio.to_thread(self.send, node)
        self.among.sent_to(node, everything=True)

    def bring_all(self, *ranks: int) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(300):
                await asyncio.gather(*(self.bring(self.nodes[rank]) for rank in ranks))
                await self.among.close()

        asyncio.run(bounded())

    def close(self) -> None:
        for node in self.nodes:
            node.connection.close()


def test_hosts_behind_firewalls_are_sent_to(
    hosts: Cluster, flow_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosts.enter_laptop():
        ground = Ground(hosts, flow_home, 2)
        for host in hosts:
            host.partition(*(other for other in hosts if other is not host))
        ground.bring_all(0, 1, 2, 3)
        ground.close()
    assert sorted(ground.sent) == [0, 1, 2, 3]
    assert all(map(ground.has, range(4)))
    said = capsys.readouterr()
    assert "cannot be reached from here" in said.out + said.err


def test_a_host_that_loses_its_power_on_the_way_is_replaced(
    hosts: Cluster, flow_home: Path
) -> None:
    cut: list[bool] = []

    def cut_on_the_way() -> None:
        """When a part of the content has come."""
        eventually(lambda: any(_partial_sizes(hosts)), every=0.002)
        hosts[0].power_cut()
        cut.append(not any(map(ground.has, (1, 2, 3))))

    with hosts.enter_laptop():
        ground = Ground(hosts, flow_home, 64)
        ground.send(ground.nodes[0])
        ground.among.add(ground.nodes[0])
        # With this cable it takes a while, also on a busy machine.
        hosts[0].delay(200)
        cutting = threading.Thread(target=cut_on_the_way)
        cutting.start()
        ground.bring_all(1, 2, 3)
        cutting.join()
        ground.close()
    assert cut == [True]
    assert all(map(ground.has, (1, 2, 3)))
    assert len(ground.sent) == 2, "host 0, and one in its place"
    assert not any(_partial_sizes(hosts, alive=(1, 2, 3)))


def _partial_sizes(hosts: Cluster, alive: tuple[int, ...] = (1, 2, 3)) -> list[int]:
    place = _CACHE.lstrip("/")
    found = []
    for rank in alive:
        for path in (hosts[rank].root / place).glob(".*.part"):
            try:
                found.append(path.stat().st_size)
            except OSError:
                continue
    return found


@pytest.mark.hours
def test_a_project_goes_to_sixteen_hosts_once(
    fresh_hosts: Callable[..., Cluster],
    flow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = fresh_hosts(FROM_NODES, disk="256m")
    site = Site(cluster, flow_home, monkeypatch)
    size = 16 << 20
    (tmp_path / "large.bin").write_bytes(os.urandom(size))
    monkeypatch.chdir(tmp_path)
    # Hosts get the agent from here.
    site.submit(shell("true"), nodes=FROM_NODES).end()
    with cluster.enter_laptop():
        before = _bytes_sent()
        gang = site.submit(shell("wc -c < large.bin"), nodes=FROM_NODES, sync=True)
        gang.end()
        assert _bytes_sent() - before < 2 * size
    assert {gang.output(rank).strip() for rank in range(FROM_NODES)} == {str(size)}


def _bytes_sent() -> int:
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines if "lo:" not in line)
