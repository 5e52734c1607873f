"""What hosts say of themselves, and what is there in the place of a Python or of our program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.connect.programs import UNSAFE, sent
from flowlite.errors import ProviderError
from provider_adapters.ssh import hosts, leases
from provider_adapters.ssh.hosts import Facts


@pytest.mark.parametrize("what", ["a directory", "for another processor", "without its shell"])
def test_what_is_no_python_here_is_left_out(tmp_path: Path, what: str) -> None:
    """As in a home that machines of two kinds share."""
    path = tmp_path / "python3"
    if what == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"\x7fELF" if what == "for another processor" else b"#!/no/such/shell\n")
        path.chmod(0o700)
    asked = {
        "node_dir": str(tmp_path / "node"),
        "lease": f"flowlite-{tmp_path.name}",
        "pythons": [str(path), sys.executable],
    }
    program = sent(hosts._PROBE, *hosts._PROBE_NEEDS)
    argv = [sys.executable, "-I", "-S", "-", json.dumps(asked)]
    done = LocalConnection().run(argv, input=program, timeout=90)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)["pythons"]
    assert found[0][0] == sys.executable
    assert str(path) not in [each[0] for each in found]


def test_a_place_for_sockets_on_a_full_disk_is_told(tmp_path: Path) -> None:
    """A limit of files' sizes is as a full disk: names can be made, and nothing can be written."""
    asked = {"node_dir": str(tmp_path), "lease": f"flowlite-{tmp_path.name}", "pythons": []}
    program = sent(hosts._PROBE, *hosts._PROBE_NEEDS)
    limited = 'ulimit -f 0; exec "$@"'
    argv = ["sh", "-c", limited, "sh", sys.executable, "-I", "-S", "-", json.dumps(asked)]
    done = subprocess.run(argv, input=program, capture_output=True, check=True, timeout=90)
    found = json.loads(done.stdout)
    assert "File too large: make room there, or set TMPDIR" in found["no_sockets"]
    assert "File too large" in found["unwritable"]
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_refuses_our_program_without_a_word_is_refused(tmp_path: Path) -> None:
    silent = tmp_path / "python3"
    silent.write_text(f"#!/bin/sh\nexit {UNSAFE}\n")
    silent.chmod(0o700)
    agent = leases.Agent(tmp_path / "agent.pyz", "0" * 64)
    with pytest.raises(ProviderError, match="others could change what runs as you"):
        leases.take(LocalConnection(), str(silent), agent, str(tmp_path), {})


@pytest.mark.parametrize(
    ("ssh", "default", "address"),
    [
        ("10.0.0.3", "10.9.0.3", "10.0.0.3"),
        ("127.0.0.1", "10.9.0.3", "10.9.0.3"),
        ("::1", "", "::1"),
        ("", "fd00::3", "fd00::3"),
        ("fe80::3%eth0", "fd00::3", "fd00::3"),
        ("fe80::3%eth0", "", "fe80::3%eth0"),
    ],
)
def test_the_address_towards_other_hosts(ssh: str, default: str, address: str) -> None:
    assert Facts(ssh_address=ssh, default_address=default).address == address
