"""Workers know their peers' names without a name server, and the machine's own hosts file stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.node.mount_namespace import hosts_file

ASK = """
import socket, sys
from flowlite.node.mount_namespace import hosts_file as names
path = sys.argv[1]
print(names.own_hosts(path))
names.add_gang(path, ["10.77.0.12", "10.77.0.11"])
names.add_gang(path, ["10.77.0.11", "10.77.0.12"])
for address in ("10.77.0.11", "10.77.0.12"):
    print(socket.getnameinfo((f"::ffff:{address}", 80, 0, 0), socket.NI_NAMEREQD)[0])
"""


def test_lines_for_the_gang() -> None:
    assert hosts_file.lines_for(["127.0.0.1", "127.0.0.1"]) == ["::ffff:127.0.0.1 flow-node-0"]
    assert hosts_file.lines_for(["10.0.0.5", "10.0.0.6"]) == [
        "::ffff:10.0.0.5 flow-node-0",
        "10.0.0.5 flow-node-0",
        "::ffff:10.0.0.6 flow-node-1",
        "10.0.0.6 flow-node-1",
    ]
    assert hosts_file.lines_for(["fd00::5"]) == ["fd00::5 flow-node-0"]


def test_a_second_gang_replaces_the_lines_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")
    hosts_file.add_gang(str(path), ["10.0.0.5", "10.0.0.6", "10.0.0.7"])
    hosts_file.add_gang(str(path), ["10.0.0.8"])
    assert path.read_text().splitlines() == [
        "127.0.0.1 localhost",
        "# the gang, by flowlite",
        "::ffff:10.0.0.8 flow-node-0",
        "10.0.0.8 flow-node-0",
    ]


@pytest.mark.both
def test_peers_have_names_and_the_machine_is_not_touched(tmp_path: Path) -> None:
    before = _machines_own()
    path = tmp_path / "hosts"
    if os.geteuid() != 0:
        assert not hosts_file.own_hosts(str(path))
        assert not path.exists()
    else:
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(path)], capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == ["True", "flow-node-0", "flow-node-1"], done.stderr
    assert _machines_own() == before


def _machines_own() -> bytes | None:
    """The machine's hosts file; a minimal system has none."""
    try:
        return Path(hosts_file.HOSTS).read_bytes()
    except FileNotFoundError:
        return None
