"""What each further host costs this machine: processor time and memory of client and supervisor, beside OpenSSH.

It counts all processes of the command on this machine and none on the hosts. A figure is a slope: what a task with many
hosts takes more than one with few, divided by the difference. The start of the client and of the supervisor is
therefore not in it. The hosts are warm: they have the agent, and the contents of the project. `SIZES` in the
environment, such as `SIZES=8,16`, replaces the numbers of hosts. `client_profile.py` shows where the time goes.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import PROGRAMS, Run, interleave, processor_time, python
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite.testing.hosts import Cluster

FEW, SIZES = 4, (16, 64)
BOUND = 0.01
FILES, FILE_BYTES = 1500, 1000
OURS, PROJECT, SSH = "flowlite", "project", "ssh"


def measure(rounds: int) -> list[Row]:
    """Rows for each number of hosts: without a project, with one, and the memory."""
    asked = os.environ.get("SIZES", "")
    sizes = [int(each) for each in asked.split(",")] if asked else list(SIZES)
    with tempfile.TemporaryDirectory() as directory:
        project = Path(directory, "project")
        _make_project(project)
        few = _measured(FEW, rounds, project)
        return [
            row
            for size in sizes
            for row in _rows(size - FEW, few, _measured(size, rounds, project), f"{FEW} to {size}")
        ]


def _rows(more: int, few: dict[str, Run], many: dict[str, Run], hosts: str) -> list[Row]:
    all_of, client = (
        {name: (getattr(many[name], part) - getattr(few[name], part)) / more for name in many}
        for part in ("reached", "own")
    )
    memory = (many[OURS].peak_mb - few[OURS].peak_mb) / more
    what = f"for each further host, {hosts} hosts, warm"
    beside = f"ssh HOST true: {seconds(all_of[SSH])}"

    def split(name: str) -> str:
        total, own = 1000 * all_of[name], 1000 * client[name]
        return f"{total:.1f} ms, {own:.1f} of them in the client"

    return [
        Row(
            f"processor time of the client's machine {what}",
            split(OURS),
            beside,
            all_of[OURS] / all_of[SSH],
            f"<= {seconds(BOUND)}",
            all_of[OURS] <= BOUND,
        ),
        Row(
            f"the same with a project of {FILES:,} files",
            split(PROJECT),
            beside,
            all_of[PROJECT] / all_of[SSH],
        ),
        Row(f"memory of the supervisor at its peak {what}", f"{1024 * memory:.0f} KB"),
    ]


def _make_project(root: Path) -> None:
    for number in range(FILES):
        path = root / str(number % 50) / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{number:<{FILE_BYTES}}".encode())


def _measured(size: int, rounds: int, project: Path) -> dict[str, Run]:
    with pool(size) as hosts:
        contestants = {
            OURS: partial(_ours, size),
            PROJECT: partial(_ours, size, project),
            SSH: partial(_ssh, hosts),
        }
        return interleave(contestants, rounds)


def _ours(size: int, *project: Path) -> Run:
    return processor_time(*python(PROGRAMS / "hosts_flowlite.py", str(size), *project))


def _ssh(hosts: Cluster) -> Run:
    names = [host.name for host in hosts]
    return processor_time(*python(PROGRAMS / "hosts_ssh.py", hosts.ssh_config, *names))
