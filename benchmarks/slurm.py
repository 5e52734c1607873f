"""What flowlite adds to a job: from the start of its `srun` to GO, beside `srun hostname` on the same nodes."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.measure import ROOT, fresh_home
from benchmarks.processes import wait_for
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig
from flowlite.testing.slurm import SlurmCluster

NODES = 4
OVER_BOUND = 1.5
_END_SECONDS = 120.0
# The peer takes its own time, within an allocation as ours is: waiting for nodes is no part of either.
_PEER = """\
began=$EPOCHREALTIME
srun --nodes={nodes} --ntasks={nodes} hostname >/dev/null || exit
echo "$began $EPOCHREALTIME" >{place}.part && mv {place}.part {place}
"""
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(rounds: int) -> list[Row]:
    """A row for a client on a login node, and one for a laptop that goes through SSH."""
    # Compiling ourselves anew is no part of a start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with SlurmCluster(NODES) as slurm:
        return [
            _compare(slurm, "on a login node", rounds, through_ssh=False),
            _compare(slurm, "on a laptop, through SSH", rounds, through_ssh=True),
        ]


def _compare(slurm: SlurmCluster, where: str, rounds: int, *, through_ssh: bool) -> Row:
    ours, peers = [], []
    with _client(slurm, through_ssh=through_ssh):
        for number in range(1 + rounds):
            peer, own = _peer(slurm), _to_go(slurm)
            # The first round fills caches, here and on the nodes.
            if number:
                peers.append(peer)
                ours.append(own)
    own, peer = statistics.median(ours), statistics.median(peers)
    over = statistics.median(a - b for a, b in zip(ours, peers, strict=True))
    return Row(
        f"Slurm, {NODES} nodes, client {where}: our `srun` to GO",
        f"{seconds(own)}, {seconds(over)} more",
        f"`srun hostname` {seconds(peer)}",
        own / peer,
        f"<= {OVER_BOUND} s more",
        over <= OVER_BOUND,
    )


@contextmanager
def _client(slurm: SlurmCluster, *, through_ssh: bool) -> Iterator[None]:
    """A fresh FLOW_HOME on the laptop."""
    login = f'login = "{slurm.login}"\n' if through_ssh else ""
    environment = slurm.hosts.client_environment() if through_ssh else slurm.login_environment()
    with fresh_home() as home, slurm.enter_laptop():
        before = dict(os.environ)
        os.environ.update({**environment, "FLOW_HOME": str(home), "PYTHONPATH": str(ROOT)})
        (home / "config.toml").write_text(
            f'provider = "slurm"\n[slurm]\n{login}python = "{sys.executable}"\n'
            f'shared_dir = "{slurm.shared}/{"laptop" if through_ssh else "login"}"\n'
        )
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _peer(slurm: SlurmCluster) -> float:
    place = slurm.shared / "peer"
    place.unlink(missing_ok=True)
    script = _PEER.format(nodes=NODES, place="/mnt/shared/peer")
    slurm.run(
        *("sbatch", f"--nodes={NODES}", f"--ntasks={NODES}", "--chdir=/", "--output=/dev/null"),
        input=f"#!/bin/bash\n{script}",
    )
    wait_for(place.exists, "srun hostname has ended")
    began, ended = map(float, place.read_text().split())
    wait_for(lambda: not slurm.jobs(), "its job is over")
    return ended - began


def _to_go(slurm: SlurmCluster) -> float:
    """Seconds from the start of the job's first `srun` until all ranks are told to start."""
    begun: list[float] = []
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=[slurm, begun, over], daemon=True)
    watch.start()
    try:
        task = Flow(notify=lambda _: None).run(TaskConfig(command=["true"], num_instances=NODES))
        task.wait(timeout=_END_SECONDS)
    finally:
        over.set()
        watch.join()
    if task.status != "completed" or task.started_at is None or not begun:
        raise RuntimeError(f"no GO on Slurm: {task.status}: {task.reason}; {len(begun)} sruns seen")
    wait_for(lambda: not slurm.jobs(), "its job is over")
    return task.started_at.timestamp() - min(begun)


def _watch(slurm: SlurmCluster, begun: list[float], over: threading.Event) -> None:
    """Notes when an `srun` begins on a node: the first one is that of the batch script."""
    groups = slurm.hosts.ask("facts")["groups"]
    while not over.wait(0.02) and not begun:
        for host in slurm.nodes:
            for pid in (Path(groups[host.name]) / "cgroup.procs").read_text().split():
                begun += _start_of(pid)


def _start_of(pid: str) -> list[float]:
    """When a process began, if it is an `srun`."""
    with suppress(OSError):
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
        if head.endswith("(srun"):
            return [_wall_clock(int(rest.split()[19]) / _TICKS)]
    return []


def _wall_clock(since_boot: float) -> float:
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
