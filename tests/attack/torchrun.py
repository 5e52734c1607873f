"""`python -m tests.attack.torchrun`: the same cuts against torchrun, on the same hosts, for the table of peers.

Three agents of torchrun (c10d, three nodes, one process each) start a program that counts until it may return. It does
not communicate, so what ends it is torchrun itself.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from flowlite.testing.hosts import Cluster

NODES = 3
COUNT = """
import os, time
name = f"/mnt/shared/{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.getpid()}"
number = 0
while not os.path.exists("/mnt/shared/finish"):
    number += 1
    open(name, "w").write(str(number))
    time.sleep(0.05)
"""
CUTS = ("member-all", "leader-all", "leader-member", "all-pairs")


def try_cut(cluster: Cluster, cut: str, seconds: float) -> str:
    """What became of the three agents and of the ranks."""
    (cluster.shared / "count.py").write_text(COUNT)
    leader = cluster[0].address
    agents = []
    for host in cluster:
        command = ["-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", "1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{leader}:29400"]
        # It tells who serves the store by names, which nobody can resolve here.
        command += ["--rdzv-conf", f"is_host={int(host is cluster[0])}"]
        command += ["--local-addr", host.address, "--max-restarts", "0", "/mnt/shared/count.py"]
        log = open(cluster.shared / f"{host.name}.log", "wb")  # noqa: SIM115
        agents.append(host.popen([sys.executable, *command], stdout=log, stderr=log))
    try:
        if not _until(lambda: len(_ranks(cluster)) == NODES, 180):
            return "it did not start"
        time.sleep(3)
        _begin(cluster, cut)
        time.sleep(seconds)
        for host in cluster:
            host.heal()
        time.sleep(30)
        before = [agent.poll() for agent in agents]
        (cluster.shared / "finish").touch()
        _until(lambda: all(agent.poll() is not None for agent in agents), 90)
        after = [agent.poll() for agent in agents]
        logs = [(cluster.shared / f"{host.name}.log").read_text().splitlines() for host in cluster]
        said = [next((line[:200] for line in reversed(log) if "Error" in line), "") for log in logs]
        return f"30 s after the cut {before}, at the end {after}; {said}"
    finally:
        for agent in agents:
            agent.kill()
        cluster.reset()


def _begin(cluster: Cluster, cut: str) -> None:
    if cut == "member-all":
        cluster[1].partition()
    elif cut == "leader-all":
        cluster[0].partition()
    elif cut == "leader-member":
        cluster[0].partition(cluster[1])
    else:
        for number, host in enumerate(cluster):
            if others := list(cluster)[number + 1 :]:
                host.partition(*others)


def _ranks(cluster: Cluster) -> list[Path]:
    return list(cluster.shared.glob("?.0.*"))


def _until(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def main() -> None:
    """Every cut for each of the lengths that are given, in seconds."""
    with Cluster(NODES) as cluster:
        for cut in CUTS:
            for seconds in map(float, sys.argv[1:] or ("20", "90")):
                print(f"{cut} {seconds:.0f} s: {try_cut(cluster, cut, seconds)}", flush=True)


if __name__ == "__main__":
    main()
