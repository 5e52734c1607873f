"""What a gang under attack runs: it counts aloud, and leaves a sign of its life where no cut of the network reaches."""

import os
import struct
import time
from pathlib import Path

import held  # noqa: F401

from flowlite import FlowApp

LIFE = struct.Struct("<ddQQ")
"""Monotonic time of the first and the last sign, lines written to each stream, and whether it has returned."""
app = FlowApp()


def line(stream: str, rank: int, attempt: int, number: int) -> bytes:
    """One numbered line; no two are alike, and their lengths differ."""
    return f"{stream} rank {rank} attempt {attempt} line {number} {'.' * (number % 89)}\n".encode()


def payload(rank: int, attempt: int) -> bytes:
    """What a rank returns."""
    return struct.pack("<QQ", rank, attempt) * 20_000


@app.function(num_instances=3, processes_per_node=1, grace_seconds=1.0)
def count() -> dict:
    """Counts until it may return."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["FLOW_ATTEMPT"])
    name = f"a{attempt}.r{rank}.{os.uname().nodename}.{os.getpid()}"
    life = os.open(Path("/mnt/shared/life") / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    first, number = time.monotonic(), 0
    os.pwrite(life, LIFE.pack(first, first, 0, 0), 0)
    while not os.path.exists("/tmp/attack-finish"):
        for stream, descriptor in (("out", 1), ("err", 2)):
            text = line(stream, rank, attempt, number + 1)
            while text:
                text = text[os.write(descriptor, text) :]
        number += 1
        os.pwrite(life, LIFE.pack(first, time.monotonic(), number, 0), 0)
        time.sleep(0.05)
    os.pwrite(life, LIFE.pack(first, time.monotonic(), number, 1), 0)
    return {"rank": rank, "attempt": attempt, "lines": number, "data": payload(rank, attempt)}
