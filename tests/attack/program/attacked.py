"""What a gang under attack runs: it counts aloud, and leaves a sign of its life where no cut of the network reaches."""

import json
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
    way, _, place = way.rpartition(" ")
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
    if way == "exception of 30 MB":
        raise ValueError("x" * 30_000_000)
    if way == "chain of exceptions":
        error: Exception = ValueError("the first")
        for number in range(2000):
            error, cause = ValueError(f"after {number}"), error
            error.__cause__ = cause
        raise error
    if way in _WRITTEN:
        block, count = _WRITTEN[way]
        for _ in range(count):
            os.write(1, block)
        os._exit(1)
    attempt = max(
        Path("/root/.flowlite-node/tasks").glob("*/a*"), key=lambda at: at.stat().st_mtime
    )
    if way.startswith("agent.log"):
        block = b"y" * (1 << 20) if way == "agent.log" else b"\x1b\x08" * (1 << 19)
        with open(attempt / "agent.log", "ab") as file:
            for _ in range(400 if way == "agent.log" else 20):
                file.write(block)
        os._exit(1)
    if way == "result of nonsense":
        (attempt / f"r{os.environ['RANK']}.result").write_bytes(os.urandom(60 << 20))
        os._exit(1)
    agent = json.loads((attempt / "agent.pid").read_text())["pid"]
    if way == "report that is a bomb":
        (attempt / "report.json").write_text('{"workers": [' + "{}," * 500_000 + "{}]}")
    elif way == "process file without end":
        (attempt / "agent.pid").unlink()
        (attempt / "agent.pid").symlink_to("/dev/zero")
    else:
        for name in ("report.json", "env.json", "agent.pid", "leader.json"):
            (attempt / name).write_text('{"workers": [{"rank": -1}], "reaper": [], "pid": NaN}')
    os.kill(agent, signal.SIGKILL)
    time.sleep(60)


_WRITTEN = {
    "progress bar": (b"55%\r" * 50_000, 250),
    "line of control sequences": (b"\x1b\x08" * (1 << 19), 4),
    "line that is no text": (os.urandom(1 << 20).replace(b"\n", b""), 50),
    "empty lines": (b"\n" * (1 << 18), 2),
}
"""What is written to standard output, and how often."""


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
