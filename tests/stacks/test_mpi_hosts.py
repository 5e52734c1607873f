"""`distributed_mode="mpi"` on hosts reached by SSH: machines with addresses of their own, and no key between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.on_hosts import Site
from tests.stacks.mpi_programs import ADD, ADDED, python

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

SECONDS = 60.0
pytestmark = pytest.mark.timeout(300)


def test_mpirun_reaches_hosts_that_have_no_key_of_each_other(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = python()
    site = Site(hosts, flow_home, monkeypatch, hosts[:2])
    for host in site.hosts:
        (host.root / "root" / "add.py").write_text(ADD)
    # The machine's own ssh asks for a key, or for a password, and gets neither.
    text = (
        'for host in $(cut -d " " -f 1 "$FLOW_HOSTFILE"); do '
        '/usr/bin/ssh -o BatchMode=yes -o StrictHostKeyChecking=no "$host" true 2>/dev/null && echo open; done; '
        f"mpirun flow-rank {program} /root/add.py"
    )
    gang = site.submit(["sh", "-c", text], distributed_mode="mpi", processes_per_node=2)
    gang.end(timeout=SECONDS)
    assert sorted(line.split() for line in gang.output(0).splitlines()) == ADDED
    # What let them in went with the task.
    for host in site.hosts:
        assert not list((host.root / "root" / ".flowlite-node" / "tasks").glob("*"))
        assert not list((host.root / "root" / ".ssh").glob("id_*"))
