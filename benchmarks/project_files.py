"""A project of 200 MB to four hosts, from its files here to the working directories there, beside `scp -r` of it.

Ours begins with an empty FLOW_HOME and ends when each host has made the directory; the second time nothing has changed.
`scp` goes to one host after the other, as somebody would who has no tool for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from benchmarks.measure import Run, interleave
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.bundle.project_files import list_files
from flowlite.bundle.project_snapshot import take_snapshot
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.supervise.attempt import project
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.record.paths import TaskPaths
from flowlite.testing.hosts import Cluster

HOSTS = 4
BOUND = 1.2
# Files of so many bytes, so many times: the shapes that 200 MB of a project may have.
SHAPES = {
    "5,150 files": ((1 << 20, 150), (10_000, 5000)),
    "20 files": ((10_000_000, 20),),
}
_PLACE = "/var/tmp/flow-project"


def measure(rounds: int) -> list[Row]:
    """For each shape one row for the first time, and one for a second task of the same project."""
    with pool(HOSTS) as hosts:
        return [row for name in SHAPES for row in _rows(hosts, name, rounds)]


def _rows(hosts: Cluster, name: str, rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        root, home = Path(directory, "project"), Path(directory, "home")
        for size, count in SHAPES[name]:
            for number in range(count):
                _write(root / f"{size}/{number % 50}/{number}.bin", size)
        medians = interleave(
            {"flowlite": partial(_ours, hosts, root, home), "scp": partial(_scp, hosts, root)},
            rounds,
        )
    ours, scp = medians["flowlite"], medians["scp"].seconds
    what = f"a project of 200 MB ({name}) to {HOSTS} hosts"
    return [
        Row(
            what,
            seconds(ours.seconds),
            f"scp -r, one host after the other: {seconds(scp)}",
            ours.seconds / scp,
            f"<= {BOUND}",
            ours.seconds <= BOUND * scp,
        ),
        Row(f"{what}, again: nothing is sent", seconds(ours.reached), "", None, "", None),
    ]


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


def _ours(hosts: Cluster, root: Path, home: Path) -> Run:
    """The first time, and in `reached` the second."""
    os.environ["FLOW_HOME"] = str(home)
    home.mkdir()
    agent = build_agent_zip(home)
    taken = [_bring(hosts, root, home, agent, task) for task in ("t1", "t2")]
    shutil.rmtree(home)
    _remove(hosts)
    return Run(taken[0], taken[1])


def _bring(hosts: Cluster, root: Path, home: Path, agent: tuple[Path, str], task: str) -> float:
    paths = TaskPaths(home, task)
    paths.make()
    began = time.monotonic()
    manifest = paths.bundle / "project.json"
    sha256 = take_snapshot(home, list_files(str(root)), {}, manifest)
    what = {"manifest": str(manifest), "sha256": sha256, "start": "."}

    def one(name: str) -> None:
        place = f"{_PLACE}/{task}"
        settings = SimpleNamespace(home=place, cache=f"{_PLACE}/blobs", python=sys.executable)
        with SshConnection(resolve_target(name, hosts.ssh_config)) as connection:
            node = SimpleNamespace(
                settings=settings,
                connection=connection,
                agent=f"{place}/agent.pyz",
                name=name,
                rank=0,
            )
            project.bring(cast(Node, node), what, agent, paths, project.ProjectProgress())

    with ThreadPoolExecutor(HOSTS) as threads:
        list(threads.map(one, [host.name for host in hosts]))
    project.forget_packs(paths)
    return time.monotonic() - began


def _scp(hosts: Cluster, root: Path) -> Run:
    began = time.monotonic()
    for host in hosts:
        target = f"{host.name}:/var/tmp/scp-project"
        subprocess.run(
            ["scp", "-q", "-r", "-F", str(hosts.ssh_config), str(root), target],
            stdin=subprocess.DEVNULL,
            check=True,
        )
    taken = time.monotonic() - began
    _remove(hosts)
    return Run(taken)


def _remove(hosts: Cluster) -> None:
    for host in hosts:
        host.exec(["rm", "-rf", _PLACE, "/var/tmp/scp-project"])
