"""200 MB to four hosts at a time through our connection, beside `scp` of the same file to the same hosts."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.measure import Run, interleave
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.testing.hosts import Cluster

HOSTS = 4
MEGABYTES = 200
BOUND = 1.2


def measure(rounds: int) -> list[Row]:
    """One row. Both begin without a connection."""
    with pool(HOSTS) as hosts, tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "bundle")
        file.write_bytes(os.urandom(2**20) * MEGABYTES)
        medians = interleave(
            {"flowlite": partial(_put, hosts, file), "scp": partial(_scp, hosts, file)}, rounds
        )
    ours, scp = medians["flowlite"].seconds, medians["scp"].seconds
    rate = HOSTS * MEGABYTES / ours
    return [
        Row(
            f"{MEGABYTES} MB to {HOSTS} hosts",
            f"{seconds(ours)}, {rate:.0f} MB/s in all",
            f"scp: {seconds(scp)}",
            ours / scp,
            f"<= {BOUND}",
            ours <= BOUND * scp,
        )
    ]


def _put(hosts: Cluster, file: Path) -> Run:
    with open(file, "rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    began = time.monotonic()

    def one(name: str) -> None:
        with SshConnection(resolve_target(name, hosts.ssh_config)) as connection:
            connection.put_cached(file, "/var/tmp/flow-copy", sha256)

    with ThreadPoolExecutor(HOSTS) as pool:
        list(pool.map(one, [host.name for host in hosts]))
    taken = time.monotonic() - began
    _remove(hosts)
    return Run(taken)


def _scp(hosts: Cluster, file: Path) -> Run:
    began = time.monotonic()
    children = [
        subprocess.Popen(
            ["scp", "-q", "-F", str(hosts.ssh_config), str(file), f"{host.name}:/var/tmp/scp-copy"],
            stdin=subprocess.DEVNULL,
        )
        for host in hosts
    ]
    if sum(child.wait() != 0 for child in children):
        raise RuntimeError("scp failed")
    taken = time.monotonic() - began
    _remove(hosts)
    return Run(taken)


def _remove(hosts: Cluster) -> None:
    for host in hosts:
        host.exec(["rm", "-f", "/var/tmp/flow-copy", "/var/tmp/scp-copy"])
