"""What a gang under attack runs: it counts aloud, and leaves a sign of its life where no cut of the network reaches."""

import os
import signal
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


class Poison(Exception):
    """Runs a command where its pickle is loaded."""

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self}",)


def misbehave(way: str) -> None:
    """What a node does that turned hostile: everything it can send home is of its own making."""
    way, _, place = way.partition(" ")
    if way == "control":
        os.write(1, b"\x1b]0;TITLE\x07\x1b[2J\n" * 3)
        raise ValueError("\x1b]0;TITLE\x07\x1b[2J in an exception")
    if way == "killed":
        os.write(1, b"\x1b]0;TITLE\x07\x1b[2J\n" * 3)
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "pickle":
        raise Poison(place)
    if way == "line":
        for _ in range(200):
            os.write(1, b"x" * (1 << 20))
        os._exit(1)
    if way == "agent.log":
        (log,) = Path("/root/.flowlite-node/tasks").glob("*/a*/agent.log")
        with open(log, "ab") as file:
            for _ in range(400):
                file.write(b"y" * (1 << 20))
        os._exit(1)


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
    if os.path.exists("/tmp/attack-hostile"):
        misbehave(Path("/tmp/attack-hostile").read_text())
    os.pwrite(life, LIFE.pack(first, time.monotonic(), number, 1), 0)
    return {"rank": rank, "attempt": attempt, "lines": number, "data": payload(rank, attempt)}
