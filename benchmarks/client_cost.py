"""What each further host costs this machine: processor time of the client and the supervisor, beside OpenSSH's client.

It counts all processes of the command on this machine and none on the hosts. The figure is the slope: what a task with
many hosts takes more than one with few, divided by the difference. The start of the client and of the supervisor is
therefore not in it.
"""

from __future__ import annotations

from functools import partial

from benchmarks.measure import MARKS, PROGRAMS, Run, command, interleave, python
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite.testing.hosts import Cluster

FEW, SIZES = 4, (16, 64)
BOUND = 0.01


def measure(rounds: int) -> list[Row]:
    """A row for each number of hosts."""
    few = _measured(FEW, rounds)
    rows = []
    for size in SIZES:
        many = _measured(size, rounds)
        ours, ssh = (
            (many[name].reached - few[name].reached) / (size - FEW) for name in ("flowlite", "ssh")
        )
        rows.append(
            Row(
                f"processor time of the client's machine for each further host, {FEW} to {size} hosts, warm",
                seconds(ours),
                f"ssh HOST true: {seconds(ssh)}",
                ours / ssh,
                f"<= {seconds(BOUND)}",
                ours <= BOUND,
            )
        )
    return rows


def _measured(size: int, rounds: int) -> dict[str, Run]:
    with pool(size) as hosts:
        return interleave({"flowlite": partial(_ours, size), "ssh": partial(_ssh, hosts)}, rounds)


def _ours(size: int) -> Run:
    return _counted(python(PROGRAMS / "hosts_flowlite.py", str(size)))


def _ssh(hosts: Cluster) -> Run:
    names = [host.name for host in hosts]
    return _counted(python(PROGRAMS / "hosts_ssh.py", hosts.ssh_config, *names))


def _counted(argv: list[str]) -> Run:
    """Runs a command. `reached` is the processor time of it and of all that it leaves behind."""
    return command(python(PROGRAMS / "processor_time.py", MARKS, *argv))
