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


class Poison:
    """Makes a file where its pickle is loaded, unless that is in a task: a node loads what its worker left, to see
    whether it can be loaded, and would leave out what cannot be."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __repr__(self) -> str:
        # As what it is when it was loaded, or the node would see the difference.
        return repr("harmless")

    def __reduce__(self) -> tuple:
        away = "__import__('os').environ.get('FLOW_TASK_ID') is None"
        return eval, (f"({away} and open({self.file!r}, 'w').close()) or 'harmless'",)


def misbehave(way: str) -> None:
    """What a node does that turned hostile: everything it can send home is of its own making.

    What cannot be seen in what came home is noted in `/mnt/shared/misdeed` once it is done.
    """
    way, _, place = way.rpartition(" ")
    if way == "control":
        os.write(1, TITLES)
        raise ValueError("\x1b]0;TITLE\x07\x1b[2J in an exception")
    if way == "killed":
        os.write(1, TITLES)
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "pickle":
        raise ValueError("poisonous", Poison(place))
    if way == "exception of 30 MB":
        raise ValueError("x" * 30_000_000)
    if way == "chain of exceptions":
        error: Exception = ValueError("the first")
        for number in range(2000):
            error, cause = ValueError(f"after {number}"), error
            error.__cause__ = cause
        raise error
    if way in WRITTEN:
        block, count = WRITTEN[way]
        for _ in range(count):
            _write(1, block)
        os._exit(1)
    attempt = max(
        Path("/root/.flowlite-node/tasks").glob("*/a*"), key=lambda at: at.stat().st_mtime
    )
    if way in AGENT_LOGS:
        block, count = AGENT_LOGS[way]
        with open(attempt / "agent.log", "ab") as file:
            for _ in range(count):
                file.write(block)
        _note(bytes=(attempt / "agent.log").stat().st_size)
        os._exit(1)
    if way == "result of nonsense":
        result = attempt / f"r{os.environ['RANK']}.result"
        result.write_bytes(os.urandom(NONSENSE))
        _note(bytes=result.stat().st_size)
        os._exit(1)
    _replace_agent(way, attempt)


def _replace_agent(way: str, attempt: Path) -> None:
    """Kills the agent, and leaves what it seems to have left."""
    agent, reaper = json.loads((attempt / "agent.pid").read_text())["pid"], os.getppid()
    # Without its agent the reaper would end this process before it has seen to its work.
    os.kill(reaper, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    while _lives(agent):
        time.sleep(0.01)
    if way == "report that is a bomb":
        (attempt / "report.json").write_text('{"workers": [' + "{}," * 500_000 + "{}]}")
    elif way == "process file without end":
        (attempt / "agent.pid").unlink()
        (attempt / "agent.pid").symlink_to("/dev/zero")
    else:
        for name in ("report.json", "env.json", "agent.pid", "leader.json"):
            (attempt / name).write_text('{"workers": [{"rank": -1}], "reaper": [], "pid": NaN}')
    _note(agent=agent)
    os.kill(reaper, signal.SIGCONT)
    time.sleep(60)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _write(descriptor: int, block: bytes) -> None:
    while block:
        block = block[os.write(descriptor, block) :]


def _note(**what: int) -> None:
    Path("/mnt/shared/misdeed").write_text(json.dumps(what))


TITLES = b"\x1b]0;TITLE\x07\x1b[2J\n" * 3
NONSENSE = 60 << 20
WRITTEN = {
    "line": (b"x" * (1 << 20), 200),
    "progress bar": (b"55%\r" * 50_000, 250),
    "line of control sequences": (b"\x1b\x08" * (1 << 19), 4),
    "line that is no text": (os.urandom(1 << 20).replace(b"\n", b""), 50),
    "empty lines": (b"\n" * (1 << 18), 2),
}
"""What is written to standard output, and how often."""
AGENT_LOGS = {
    "agent.log": (b"y" * (1 << 20), 400),
    "agent.log of control sequences": (b"\x1b\x08" * (1 << 19), 20),
}
"""What is written to the agent's log, and how often."""


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
