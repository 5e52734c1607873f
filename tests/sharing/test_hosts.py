"""Volumes that node 0 serves, between hosts: `flow run` over SSH on a pool without a directory that all share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.components import need
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

pytestmark = pytest.mark.timeout(300)

VOLUME = ("--volume", "/data=notes")


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    need("sshfs")
    return Lab(hosts, flow_home, hosts[:3])


def test_what_rank_0_writes_the_others_read(lab: Lab) -> None:
    script = (
        "[ $RANK = 0 ] && { echo from $RANK on $(hostname) > /data/new; mv /data/new /data/it; }; "
        "until [ -e /data/it ]; do sleep 0.05; done; cat /data/it; echo mine > /data/r$RANK; "
        "until [ -e /data/r0 ] && [ -e /data/r1 ] && [ -e /data/r2 ]; do sleep 0.05; done; ls -A /data"
    )
    done = lab.flow("run", "-N", "3", *VOLUME, "--", "sh", "-c", script)
    assert len(re.findall(r"\[Node [012]\].* from 0 on node00", done.stdout)) == 3, done.stdout
    assert len(re.findall(r"\[Node [012]\].* r2", done.stdout)) == 3
    for host in lab.hosts:
        left = host.exec(["cat", "/proc/mounts"]).stdout
        assert "sshfs" not in left, left
    # The next task finds it, also with another number of nodes.
    done = lab.flow("run", "-N", "2", *VOLUME, "--", "cat", "/data/r2")
    assert done.stdout.count("mine") == 2
    lab.flow("volumes", "delete", "notes", "--yes")


def test_no_key_and_nothing_of_the_leader_but_the_volume(lab: Lab) -> None:
    """What a member's worker sees of the leader is the volume, also through links that lie in it."""
    lab.hosts[0].exec(["sh", "-c", "echo of the leader > /root/secret"])
    script = (
        "[ $RANK = 0 ] && { ln -s /root/secret /data/link; ln -s ../../../../root /data/up; touch /data/go; }; "
        "until [ -e /data/go ]; do sleep 0.05; done; "
        "[ $RANK = 0 ] || { cat /data/link /data/up/secret; ls /root/.ssh/id_*; echo looked; }"
    )
    done = lab.flow("run", "-N", "2", *VOLUME, "--", "sh", "-c", script)
    assert "looked" in done.stdout
    assert "of the leader" not in done.stdout
    assert "id_" not in done.stdout.replace("/root/.ssh/id_*", "")
    lab.flow("volumes", "delete", "notes", "--yes")


def test_a_host_without_sshfs_is_named_with_the_choices(lab: Lab) -> None:
    for host in lab.hosts[1:]:
        host.exec(["rm", "/usr/bin/sshfs"])
    done = lab.flow("run", "-N", "2", *VOLUME, "--", "true", code=None)
    assert done.returncode != 0
    assert "sshfs" in done.stderr
    assert "shared_dir" in done.stderr
