"""Programs that another user of a host puts where flowlite keeps its own: they are never run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.testing.hosts.root import USER, USER_ID
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from pathlib import Path

    from flowlite.testing.hosts import Cluster, Host

ROOT = "/srv/lab"
PROOF = "/tmp/ran"
PLANTED = f"open({PROOF!r}, 'a').write('ran')\n"


def plant(host: Host, lab: Lab, *, user: str, mode: str) -> None:
    """Puts a program in the place of the node's own."""
    sha256 = build_agent_zip(lab.home).sha256
    assert host.exec(["install", "-d", "-m", "1777", "/srv"]).returncode == 0
    script = (
        f'mkdir -p {ROOT}/blobs && cat >"{ROOT}/blobs/{sha256}" && chmod -R {mode} {ROOT}/blobs'
    )
    made = host.exec(["sh", "-c", script], user=user, input=PLANTED)
    assert made.returncode == 0, made.stderr
    host.exec(["chmod", mode, ROOT])


def ran(host: Host) -> bool:
    return host.exec(["test", "-e", PROOF]).returncode == 0


def settings(**more: str) -> str:
    lines = {"python": sys.executable, "node_dir": ROOT, **more}
    return "\n".join(f'{name} = "{value}"' for name, value in lines.items())


@pytest.mark.parametrize("user", [USER, "root"])
def test_nothing_runs_from_a_directory_that_others_write(
    hosts: Cluster, flow_home: Path, user: str
) -> None:
    lab = Lab(hosts, flow_home, hosts[:2], settings())
    plant(hosts[0], lab, user=user, mode="0777")
    hosts[1].exec(["install", "-d", "-m", "1777", "/srv"])
    # Remembered from before somebody opened it, too: what the host was once lets nobody in.
    assert "node01" in lab.flow("run", "--", "hostname").stdout
    refused = lab.flow("run", "-N", "2", "--", "hostname", code=None)
    assert refused.returncode != 0
    assert "others could change what runs as you there" in refused.stderr
    assert not ran(hosts[0])
    [told] = lab.json("hosts", "check", code=5)
    [problem] = told["problems"]
    whose = f"{ROOT} belongs to uid {USER_ID}" if user == USER else f"{ROOT} can be written"
    assert whose in problem["problem"]
    assert "chmod go-w" in problem["fix"]


def test_a_directory_that_was_safe_when_it_was_looked_at(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:1], settings())
    hosts[0].exec(["install", "-d", "-m", "1777", "/srv"])
    lab.flow("run", "--", "hostname")
    hosts[0].exec(["sh", "-c", f"chmod 0777 {ROOT} && mv {ROOT}/blobs {ROOT}/before"])
    plant(hosts[0], lab, user=USER, mode="0777")
    refused = lab.flow("run", "--", "hostname", code=None)
    assert "others could change what runs as you there" in refused.stderr
    assert not ran(hosts[0])


def test_a_program_that_is_not_what_its_name_says_is_brought_anew(
    hosts: Cluster, flow_home: Path
) -> None:
    lab = Lab(hosts, flow_home, hosts[:1], settings())
    plant(hosts[0], lab, user="root", mode="0700")
    assert "node00" in lab.flow("run", "--", "hostname").stdout
    assert not ran(hosts[0])


def test_a_place_for_sockets_that_others_made_first(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:1])
    made = hosts[0].exec(["mkdir", "-m", "0777", "/tmp/flowlite-0"], user=USER)
    assert made.returncode == 0
    assert "node00" in lab.flow("run", "--", "hostname").stdout
    [told] = lab.json("hosts", "check")
    [problem] = told["problems"]
    assert f"/tmp/flowlite-0 belongs to uid {USER_ID}" in problem["problem"]
    assert not problem["serious"]


def test_a_home_that_cannot_be_written_is_found_by_the_check(
    hosts: Cluster, flow_home: Path
) -> None:
    lab = Lab(hosts, flow_home, hosts[:2])
    read_only = "mount --bind /root /root && mount -o remount,bind,ro /root"
    assert hosts[0].exec(["sh", "-c", read_only]).returncode == 0
    try:
        [told] = lab.json("hosts", "check", code=5)
        found = {(each["host"], each["problem"]) for each in told["problems"]}
        assert any(h == "node00" and "Read-only file system" in text for h, text in found)
    finally:
        hosts[0].exec(["umount", "/root"])
