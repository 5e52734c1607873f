"""The addresses of a job's nodes, from what the login node knows of them. It may be one of them itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.errors import ProviderError
from provider_adapters.slurm.login import Facts, SlurmLogin
from provider_adapters.slurm.nodes import places_of
from provider_adapters.slurm.queries.parse import Job

KNOWN = {
    # As Debian writes the name of a machine into its own /etc/hosts.
    "head": ["127.0.1.1"],
    "gpu1": ["10.0.0.2"],
    # The library that answers for the name of a machine itself gives all of its addresses.
    "gpu2": ["fe80::1%lo", "::1", "10.0.0.3"],
}
Addresses = Callable[..., dict[str, str]]


@pytest.fixture
def addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Addresses:
    """The addresses of these nodes, for a login node with stand-ins for the programs that it is asked with."""
    told = ""
    for name, listed in KNOWN.items():
        lines = "".join(f"{each}  STREAM {name}\\n{each}  DGRAM\\n" for each in listed)
        told += f"{name}) printf '%b' '{lines}';;\n"
    tools = {
        "scontrol": 'echo "NodeName=$4 NodeAddr=$4 State=IDLE" | sed "s/,.*//"',
        "getent": f"case $2 in\n{told}*) exit 2;; esac",
        "ip": 'echo "$4 dev eth0 src 10.0.0.1 uid 0 \\\\    cache"',
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    login = SlurmLogin("", tmp_path, LocalConnection())
    login._facts = Facts(str(tmp_path / "sbatch"), "", "", str(tmp_path), "me", 1, "head")

    def ask(*hosts: str) -> dict[str, str]:
        places = places_of(login, Job("7", "RUNNING"), hosts, hosts, "/nodes", "program")
        return {place.host: place.address for place in places}

    return ask


def test_a_login_node_that_is_a_node_itself_has_the_address_that_others_reach(
    addresses: Addresses,
) -> None:
    assert addresses("head", "gpu1") == {"head": "10.0.0.1", "gpu1": "10.0.0.2"}
    assert addresses("gpu1", "gpu2") == {"gpu1": "10.0.0.2", "gpu2": "10.0.0.3"}


def test_alone_its_own_address_will_do(addresses: Addresses) -> None:
    assert addresses("head") == {"head": "127.0.1.1"}


def test_a_node_that_the_login_node_does_not_know_is_named(addresses: Addresses) -> None:
    with pytest.raises(ProviderError, match="the addresses of gpu9 are not known"):
        addresses("head", "gpu9")
