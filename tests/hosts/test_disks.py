"""Disks and shares of rented machines: real block devices, and a file system that two machines have at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.testing.cloud.machines import Machines
from flowlite.testing.hosts import Cluster, Host
from flowlite.testing.hosts.disks import Appearance
from flowlite.testing.hosts.probes import disks_of
from tests.helpers import eventually

pytestmark = pytest.mark.needs("hosts")
ROOT = Path(__file__).resolve().parent.parent.parent
SIZE = 64 << 20
NVME = Appearance("nvme1n1", "vol0123", ("disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0123",))


class Rented:
    """Two machines that can be rented, and disks and shares for them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.machines = Machines(cluster.directory)

    def boot(self, name: str) -> Host:
        """A machine that runs."""
        slot = self.machines.boot(name).slot
        host = next(each for each in self.cluster if each.name == slot)
        eventually(lambda: host.alive)
        return host

    def sh(self, host: Host, script: str, code: int = 0) -> str:
        done = host.exec(["sh", "-c", script])
        assert done.returncode == code, f"{script}\n{done.stdout}\n{done.stderr}"
        return str(done.stdout)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(0, slots=2) as made:
        yield made


@pytest.fixture
def rented(cluster: Cluster) -> Iterator[Rented]:
    yield Rented(cluster)
    cluster.reset()
    assert disks_of(cluster.directory) == []


def test_a_disk_keeps_what_is_on_it_from_machine_to_machine(rented: Rented) -> None:
    machines = rented.machines
    machines.make_disk("vol-1", SIZE)
    first = rented.boot("a")
    assert rented.sh(first, "lsblk -n -o NAME") == "", "the real machine's disks are not its own"
    assert machines.attach_disk("vol-1", "a", NVME)
    listed = rented.sh(first, "lsblk -n -b -o NAME,TYPE,SIZE").split()
    assert listed == ["nvme1n1", "disk", str(SIZE)]
    assert rented.sh(first, "cat /sys/class/block/nvme1n1/device/serial") == "vol0123\n"
    link = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0123"
    assert rented.sh(first, f"readlink -f {link}") == "/dev/nvme1n1\n"
    rented.sh(
        first, "mkfs.ext4 -q -L it /dev/nvme1n1 && mount /dev/nvme1n1 /mnt && echo 1 > /mnt/a"
    )
    assert not machines.detach_disk("vol-1"), "it is mounted"
    second = rented.boot("b")
    assert not machines.attach_disk("vol-1", "b", NVME)
    rented.sh(first, "umount /mnt")
    assert machines.detach_disk("vol-1")
    assert (
        rented.sh(first, f"lsblk -n; ls /dev/nvme* {link} 2>&1 || true").count("No such file") == 2
    )
    assert machines.attach_disk("vol-1", "b", Appearance("xvdf"))
    assert rented.sh(second, "lsblk -n -o NAME,LABEL").split() == ["xvdf", "it"]
    rented.sh(second, "mount /dev/xvdf /mnt && cat /mnt/a")
    # What ends lets go, whatever it had mounted.
    machines.end("b")
    eventually(lambda: machines.detach_disk("vol-1"))
    machines.remove_disk("vol-1")
    assert disks_of(rented.cluster.directory) == []


def test_a_disk_is_there_before_a_machine_starts_and_when_it_starts_again(rented: Rented) -> None:
    machines = rented.machines
    machines.make_disk("vol-2", SIZE)
    machines.boot("a", delay=0.3, script="#!/bin/sh\nlsblk -n -o NAME,SIZE\n")
    assert machines.attach_disk("vol-2", "a", Appearance("vdb"))
    eventually(lambda: "vdb   64M" in machines.console("a"))
    machines.halt("a")
    machines.restart("a")
    host = next(each for each in rented.cluster if each.alive)
    assert rented.sh(host, "lsblk -n -o NAME").split() == ["vdb"]


def test_a_share_is_one_file_system_for_those_who_are_admitted(rented: Rented) -> None:
    machines = rented.machines
    first, second = rented.boot("a"), rented.boot("b")
    address = machines.serve("target", "fs-1")
    mount = f"mkdir -p /data && timeout %d mount.nfs4 {address}:/ /data -o nfsvers=4.1,hard"
    first.exec(["sh", "-c", mount % 2])
    assert rented.sh(first, "grep -c ' /data ' /proc/mounts || true") == "0\n"
    own = {each.slot: each.address for each in map(machines.find, "ab") if each is not None}
    machines.admit(
        "target", [f"ip saddr {own[host.name]} tcp dport 2049" for host in (first, second)]
    )
    for host in (first, second):
        rented.sh(host, mount % 30)
    rented.sh(first, "mkdir /data/x && echo 1 > /data/x/new && mv /data/x/new /data/x/it")
    for number in range(20):
        assert rented.sh(second, "cat /data/x/it") == f"{number + 1}\n"
        rented.sh(second, f"echo {number + 2} > /data/x/it")
        assert rented.sh(first, "cat /data/x/it") == f"{number + 2}\n"
    assert machines.share_size("fs-1") == 3
    for host in (first, second):
        rented.sh(host, "umount /data")
    machines.stop_serving("target")
    again = machines.serve("other", "fs-1")
    machines.admit("other", ["tcp dport 2049"])
    rented.sh(first, f"mount.nfs4 {again}:/ /data -o nfsvers=4.1 && cat /data/x/it")


OWNER = """
import time
from flowlite.testing.cloud.machines import Machines
from flowlite.testing.hosts import Cluster
from flowlite.testing.hosts.disks import Appearance

hosts = Cluster(0, slots=1)
machines = Machines(hosts.directory)
machines.boot("a")
machines.make_disk("vol-1", 64 << 20)
machines.attach_disk("vol-1", "a", Appearance("vdb"))
machines.admit("files", machines.serve("files", "fs-1") and ["tcp dport 2049"])
host = hosts[0]
while not host.alive:
    time.sleep(0.01)
done = host.exec(["sh", "-c", "mkfs.ext4 -q /dev/vdb && mount /dev/vdb /mnt && echo 1 > /mnt/a && "
                  "mkdir /data && mount.nfs4 10.77.1.253:/ /data -o nfsvers=4.1 && echo 1 > /data/a"])
print(hosts.directory, done.returncode, hosts.ask("facts")["room"], flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("who", ["the owner", "the room"])
def test_no_device_and_no_server_is_left_by_who_is_killed(who: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    directory, code, room = Path(said[0]), said[1], int(said[2])
    assert code == "0", said
    assert disks_of(directory)
    assert processes_about(directory)
    os.kill(process.pid if who == "the owner" else room, signal.SIGKILL)
    eventually(lambda: not disks_of(directory))
    eventually(lambda: not processes_about(directory))
    process.kill()
    process.communicate()
    if who == "the room":
        Cluster(1).close()  # The next one removes what is left on the disk.
    eventually(lambda: not directory.exists())


def processes_about(directory: Path) -> list[int]:
    """Processes of this machine whose command line names the directory: its room, and servers of its files."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if str(directory) in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
                found.append(int(pid))
    return found
