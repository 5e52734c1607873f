"""MASTER_PORT: proved, kept from other tasks, let go of; and the interface that leads to the leader."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.node.preflight.master_port import MasterPort
from flowlite.node.system import addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowlite.testing.hosts import Cluster


def bindable(port: int) -> bool:
    """Whether a framework could bind it now, even one that does not ask for address reuse."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


@pytest.fixture
def free() -> int:
    """A port that was free a moment ago, to be preferred instead of the one everybody wants."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_preferred_port_is_taken_if_it_is_free(tmp_path: Path, free: int) -> None:
    master = MasterPort("127.0.0.1", tmp_path, free)
    assert master.prove() == free
    socket.create_connection(("127.0.0.1", free)).close()
    assert not bindable(free)
    master.close()
    assert bindable(free)
    master.release()


def test_a_port_that_is_held_is_passed_over(tmp_path: Path, free: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free))
        other.listen()
        master = MasterPort("127.0.0.1", tmp_path, free)
        assert master.prove() not in (free, None)
        master.release()


def test_two_tasks_of_a_machine_never_get_the_same_port(tmp_path: Path, free: int) -> None:
    first, second = (MasterPort("127.0.0.1", tmp_path, free) for _ in range(2))
    taken = first.prove()
    first.close()
    # The first task's workers have not bound it yet; only the lock keeps the second away.
    assert bindable(taken)
    assert second.prove() != taken
    second.release()
    first.release()
    third = MasterPort("127.0.0.1", tmp_path, free)
    assert third.prove() == taken
    third.release()


def test_nor_do_tasks_of_different_homes(tmp_path: Path, free: int) -> None:
    first, second = (MasterPort("127.0.0.1", tmp_path / each, free) for each in ("a", "b"))
    taken = first.prove()
    first.close()
    assert second.prove() != taken
    second.release()
    first.release()


def test_a_lock_ends_with_its_process(tmp_path: Path, free: int) -> None:
    script = (
        "from pathlib import Path; from flowlite.node.preflight.master_port import MasterPort; import os\n"
        f"print(MasterPort('127.0.0.1', Path({str(tmp_path)!r}), {free}).prove(), flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert int(done.stdout) == free
    master = MasterPort("127.0.0.1", tmp_path, free)
    assert master.prove() == free
    master.release()


def test_an_address_that_is_not_ours_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"198\.51\.100\.7.*address of the leader"):
        MasterPort("198.51.100.7", tmp_path).prove()


def test_probes_leave_no_trace_on_the_port(tmp_path: Path, free: int) -> None:
    async def gang() -> int:
        master = MasterPort("127.0.0.1", tmp_path, free)
        port = master.prove()
        for _ in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()
        master.close()
        master.release()
        return port

    # A connection in TIME_WAIT would keep whoever binds without address reuse from it.
    assert bindable(asyncio.run(gang()))


def test_an_interface_may_have_several_addresses(fresh_hosts: Callable[..., Cluster]) -> None:
    host = fresh_hosts(1)[0]
    for where in ("192.168.7.10/24 dev eth0", "172.31.0.1/32 dev lo"):
        assert host.exec(["ip", "addr", "add", *where.split()]).returncode == 0
    ask = (
        "from flowlite.node.system import addresses as a; print("
        "a.interface_towards('192.168.7.11'), a.interface_towards('192.168.7.10'), "
        "a.network_of(['192.168.7.10', '192.168.7.11']), a.interface_towards('172.31.0.1'))"
    )
    root = str(Path(addresses.__file__).parents[3])
    said = host.exec([host.python, "-c", ask], environment={"PYTHONPATH": root})
    # What stands for 127.0.0.1 is no interface that reaches others.
    assert said.stdout.split() == ["eth0", "eth0", "192.168.7.0/24", "None"], said


def test_the_interface_towards_an_address() -> None:
    loopback = addresses.interface_towards("127.0.0.1")
    assert loopback in {name for _, name in socket.if_nameindex()}
    assert loopback is not None
    assert loopback.startswith("lo")
    assert addresses.address_towards("127.0.0.1") == "127.0.0.1"
    assert addresses.interface_towards("not an address") is None
    own = addresses.address_towards("8.8.8.8")
    if own is not None:
        # The leader itself asks about its own address.
        assert (
            addresses.interface_towards(own) == addresses.interface_towards("8.8.8.8") != loopback
        )
