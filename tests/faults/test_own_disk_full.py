"""A node's own small disk fills up while its rank writes: what was written before is here, node and disk are named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.faults.on_hosts import Site

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from flowlite.testing.hosts import Cluster

ROOT = "/root/.flowlite-node"
SIZE = 16 << 20
# Writes whole numbered lines until the disk is full, and notes elsewhere how many there were.
FILL = """
import os
from pathlib import Path
written = 0
def line(number):
    return f"line {number} {'.' * (number % 89)}\\n".encode()
try:
    while os.environ["RANK"] == "1":
        rest = line(written)
        while rest:
            rest = rest[os.write(1, rest):]
        written += 1
except OSError as error:
    Path("/mnt/shared/error").write_text(str(error))
    raise
finally:
    Path("/mnt/shared/written").write_text(str(written))
"""


def test_what_was_written_is_here_and_node_and_disk_are_named(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts[1].exec(["mkdir", "-p", ROOT]).check_returncode()
    small = f"mount -t tmpfs -o size={SIZE} tmpfs {ROOT}"
    hosts[1].exec(["sh", "-c", small]).check_returncode()
    site = Site(hosts, flow_home, monkeypatch, hosts[:2])
    gang = site.submit([sys.executable, "-c", FILL])
    record = gang.end("failed", timeout=120)
    assert "No space left" in (hosts.shared / "error").read_text()
    written = int((hosts.shared / "written").read_text())
    assert written * 50 > SIZE // 4
    found = gang.output(1).splitlines()
    wanted = [f"line {number} {'.' * (number % 89)}" for number in range(written)]
    assert found[:written] == wanted
    assert "node 1, rank 1: exited with 1" in record.reason
    assert f"the disk of {ROOT}/tasks/{gang.id}" in record.reason
    assert "is full, and what it printed since then is lost" in record.reason
