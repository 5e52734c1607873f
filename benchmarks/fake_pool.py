"""Hosts that are faked at the wire as a pool of the SSH provider (`programs/fake_hosts.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, fresh_home, python
from benchmarks.pool import configure
from flowlite.testing.hosts import keys, system

PORT = 22
_NETWORK = "10.88"
_IN_ONE = 250


def address_of(number: int) -> str:
    """The address of a fake host by its number."""
    return f"{_NETWORK}.{number // _IN_ONE}.{number % _IN_ONE + 1}"


def name_of(number: int) -> str:
    """The name of a fake host by its number."""
    return f"fake{number:04d}"


@contextmanager
def fake_pool(count: int) -> Iterator[Path]:
    """Hosts that answer, and a FLOW_HOME whose one pool they are. This thread is in their network meanwhile.

    Yields the file that names the commands that no host has understood, one on each line.
    """
    with tempfile.TemporaryDirectory() as name, fresh_home() as home:
        directory = Path(name)
        for key in ("key", "host_key"):
            keys.make_key(directory / key, "benchmark")
        hosts = [(name_of(number), address_of(number)) for number in range(count)]
        public = directory / "host_key.pub"
        known = keys.known_hosts([(*host, public) for host in hosts])
        (directory / "known_hosts").write_text(known)
        config = directory / "ssh_config"
        config.write_text(keys.ssh_config(directory, hosts, "root"))
        network = system.new_network()
        try:
            with system.inside_network(network):
                system.configure("lo")
                # Every address of the network is this machine's.
                route = ["ip", "route", "add", "local", f"{_NETWORK}.0.0/16", "dev", "lo"]
                subprocess.run(route, check=True)
                with _served(directory, count):
                    configure(home, [host for host, _ in hosts], config, sys.executable)
                    yield directory / "unknown"
        finally:
            os.close(network)


@contextmanager
def _served(directory: Path, count: int) -> Iterator[None]:
    argv = python(PROGRAMS / "fake_hosts.py", directory, str(count))
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the fake hosts do not answer")
            yield
        finally:
            process.kill()
