"""Steps through a login node that is another machine, with what only such a machine can suffer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.connect.ssh import link, transport
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.connect.step import StepConnection, pool
from flowlite.errors import NodeUnreachable
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host


@pytest.fixture
def reach(hosts: Cluster, program: Path) -> Iterator[Callable[[Host], StepConnection]]:
    """Nodes behind a host: `env` there stands for `srun`."""
    made: list[StepConnection] = []
    there = f"/root/blobs/{program.name}"

    def connect(host: Host) -> StepConnection:
        target = resolve_target(host.name, hosts.ssh_config)
        with SshConnection(target) as login:
            login.put_cached(program, there, program.name, mode=0o700)
        how = {"python": host.python, "program": there}
        made.append(StepConnection(SshConnection(target), (), label="the login node", **how))
        hub = made[-1]
        made.append(StepConnection(hub, ("env",), label="node n1", **how))
        return made[-1]

    with hosts.enter_laptop():
        yield connect
        for connection in reversed(made):
            connection.close()
        pool.close_idle()
        link.close_idle()


@pytest.mark.parametrize("what", ["partition", "power_cut"])
def test_a_login_node_that_goes_silent(
    reach: Callable[[Host], StepConnection],
    hosts: Cluster,
    what: str,
) -> None:
    host = hosts[0]
    connection = reach(host)
    assert connection.run(["hostname"]).stdout.decode().strip() == host.name

    def strike() -> None:
        eventually(lambda: (host.root / "tmp" / "begun").exists())
        getattr(host, what)()
        # Not before: a busy machine takes its time to begin.
        patch.setattr(transport, "PULSE_SECONDS", 0.5)

    striking = threading.Thread(target=strike)
    with pytest.MonkeyPatch.context() as patch:
        striking.start()
        with pytest.raises(NodeUnreachable, match=f"{host.name}|node n1"):
            connection.run(["sh", "-c", "touch /tmp/begun; exec sleep 600"])
        striking.join()
    {"partition": host.heal, "power_cut": host.start}[what]()
    eventually(lambda: _answers(connection), timeout=90)


def _answers(connection: StepConnection) -> bool:
    try:
        return connection.run(["true"], timeout=20).code == 0
    except (NodeUnreachable, TimeoutError):
        return False


def test_one_session_is_enough_for_many_nodes(
    reach: Callable[[Host], StepConnection], hosts: Cluster
) -> None:
    # sshd opens ten sessions for one connection.
    hub = reach(hosts[1])
    how = {"python": hosts[1].python, "program": hub.key[1][-2]}
    nodes = [
        StepConnection(hub, ("env", f"NODE={number}"), label=f"node {number}", **how)
        for number in range(15)
    ]
    held = [node.open()["pid"] for node in nodes]
    assert len(set(held)) == len(nodes)
    said = [node.run(["sh", "-c", "echo $NODE"]).stdout for node in nodes]
    assert said == [b"%d\n" % number for number in range(15)]
