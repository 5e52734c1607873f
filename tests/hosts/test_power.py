"""A host that is powered off from inside ends, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.testing.hosts import Cluster, Host
from flowlite.testing.hosts.root import KNOBS
from tests.helpers import eventually

pytestmark = pytest.mark.needs("hosts")
REBOOT = "import ctypes; ctypes.CDLL(None).reboot({magic:#x})"
WAYS = {
    "poweroff": ["poweroff", "-f"],
    "shutdown": ["shutdown", "-h", "now"],
    "the system call": ["python3", "-c", REBOOT.format(magic=0x4321FEDC)],
    "the system call, to halt": ["python3", "-c", REBOOT.format(magic=0xCDEF0123)],
}


def run(host: Host, command: str) -> str:
    return host.exec(["sh", "-c", command]).stdout.strip()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_only_the_host_itself_ends(hosts: Cluster, way: list[str]) -> None:
    hosts[0].exec(way)
    eventually(lambda: not hosts[0].alive)
    assert hosts[1].alive
    hosts[0].start()
    assert hosts[0].exec(["true"]).returncode == 0


def test_the_knobs_of_the_kernel_do_nothing(hosts: Cluster) -> None:
    # Not every kernel has all of them.
    there = [knob for knob in KNOBS if Path("/", knob).exists()]
    assert there
    for knob in there:
        assert run(hosts[0], f"echo x > /{knob} && stat -c %t:%T /{knob}") == "1:3", knob


def test_there_is_no_systemd(hosts: Cluster) -> None:
    assert run(hosts[0], "command -v systemctl systemd-run journalctl; ls -d /run/systemd") == ""
