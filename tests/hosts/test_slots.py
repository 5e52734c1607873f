"""Hosts that are rented out: not there at first, a stranger at every boot, missed when they end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from flowlite.testing.hosts import Cluster
from tests.components import missing
from tests.helpers import eventually

pytestmark = pytest.mark.needs("hosts")

if not missing("hosts"):
    from flowlite.testing.cloud.machines import Machines, NoMachineFree


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, slots=2) as cluster:
        yield cluster


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[Machines]:
    machines = Machines(cluster.directory)
    yield machines
    machines.end_all()


def test_slots_are_off_until_somebody_has_them(cluster: Cluster, machines: Machines) -> None:
    assert [host.alive for host in cluster] == [True, False, False]
    up = threading.Event()
    machine = machines.boot("i-1", delay=0.05, on_up=up.set)
    assert machine.slot == "machine00"
    assert up.wait(90)
    assert [host.alive for host in cluster] == [True, True, False]
    machines.end("i-1")
    assert not cluster[1].alive


def test_there_are_so_many_and_no_more(machines: Machines) -> None:
    for number in range(2):
        machines.boot(f"i-{number}", delay=float("inf"))
    assert machines.free() == 0
    with pytest.raises(NoMachineFree):
        machines.boot("i-2")
    machines.end("i-0")
    assert machines.free() == 1


def test_two_landlords_share_them(cluster: Cluster, machines: Machines) -> None:
    others = Machines(cluster.directory)
    taken = {machines.boot("i-1", delay=float("inf")).slot}
    taken.add(others.boot("i-1", delay=float("inf")).slot)
    assert len(taken) == 2
    others.end_all()
    assert machines.free() == 1


def test_a_script_runs_once_and_speaks_on_the_console(machines: Machines) -> None:
    machines.boot("i-1", script="#!/bin/sh\necho spoken by $(id -un)\n", files={"/etc/x": "y"})
    eventually(lambda: "spoken by root" in machines.console("i-1"))
    machines.halt("i-1")
    machines.restart("i-1")
    machines.write("i-1", "/run/seen", "1")
    assert machines.console("i-1").count("spoken") == 1


def test_the_last_word_is_heard(cluster: Cluster, machines: Machines) -> None:
    ended = threading.Event()
    last = "#!/bin/sh\ncat /var/log/cloud-init-output.log\necho the end\npoweroff\n"
    machines.boot("i-1", script=last, on_end=ended.set)
    assert ended.wait(90)
    assert machines.console("i-1").endswith("the end\n")


def test_text_without_an_interpreter_is_no_script(cluster: Cluster, machines: Machines) -> None:
    machine = machines.boot("i-1", script="echo never\n")
    host = next(h for h in cluster if h.name == machine.slot)
    eventually(lambda: host.alive and host.exec(["test", "-e", "/run/sshd.pid"]).returncode == 0)
    assert "never" not in machines.console("i-1")


def test_the_landlord_hears_of_an_end_but_not_of_his_own(machines: Machines) -> None:
    ended: list[str] = []
    off = "#!/bin/sh\npoweroff\n"
    machines.boot("i-1", script=off, on_end=lambda: ended.append("i-1"))
    machines.boot("i-2", on_end=lambda: ended.append("i-2"))
    eventually(lambda: ended)
    machines.power_cut("i-2")
    machines.end("i-1")
    assert ended == ["i-1"]


def test_a_reboot_is_no_end(cluster: Cluster, machines: Machines) -> None:
    ended: list[str] = []
    machine = machines.boot("i-1", on_end=lambda: ended.append("i-1"))
    host = next(h for h in cluster if h.name == machine.slot)
    ready = ["test", "-e", "/run/sshd.pid"]
    eventually(lambda: host.alive and host.exec(ready).returncode == 0)
    first = host.pid
    reboot = "import ctypes; open('/kept', 'w'); ctypes.CDLL(None).reboot(0x1234567)"
    host.exec(["python3", "-c", reboot])
    eventually(lambda: cluster.ask("facts")["hosts"][host.name] not in (None, first))
    # Its process 1 is there before its file system is.
    eventually(lambda: host.exec(["test", "-e", "/kept"]).returncode == 0)
    assert not ended


def test_nothing_of_a_tenant_is_left_for_the_next(cluster: Cluster, machines: Machines) -> None:
    seen = set()
    for number in range(4):
        machine = machines.boot(f"i-{number}", authorized_keys=["ssh-ed25519 AAAA somebody"])
        host = next(h for h in cluster if h.name == machine.slot)
        eventually(lambda host=host: host.alive)
        eventually(lambda host=host: host.exec(["test", "-e", "/run/sshd.pid"]).returncode == 0)
        key = host.exec(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout
        found = host.exec(["sh", "-c", "cat /left ~ubuntu/.ssh/authorized_keys"]).stdout
        assert found == "ssh-ed25519 AAAA somebody\n"
        host.exec(["sh", "-c", "echo left > /left; echo left >> ~ubuntu/.ssh/authorized_keys"])
        seen.add(key)
        machines.end(f"i-{number}")
    assert len(seen) == 4


def test_a_reset_frees_them(cluster: Cluster, machines: Machines) -> None:
    machines.boot("i-1")
    cluster.reset()
    assert cluster.ask("free") == 2
    assert [host.alive for host in cluster] == [True, False, False]
