"""Running commands, taking their time and memory, and comparing medians of interleaved rounds.

This module stays small on purpose: a child's peak memory as the kernel reports it is never below that of the process
that started it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKS = "{marks}"  # in a command: the directory where workers leave their marks
PROGRAMS = Path(__file__).resolve().parent / "programs"


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Attributes:
        seconds: From its start to its end.
        reached: From its start to the last mark that its workers left; or the seconds that it measured itself.
        peak_mb: Largest resident memory of it and of the children it waited for.
        own: With `programs/processor_time.py`, what of `reached` the command itself took; with
            `programs/rendezvous_flowlite.py`, the processor time of the leader.
    """

    seconds: float
    reached: float = 0.0
    peak_mb: float = 0.0
    own: float = 0.0


@contextmanager
def fresh_home() -> Iterator[Path]:
    """A FLOW_HOME of its own, removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="flow-bench-"))
    before = os.environ.get("FLOW_HOME")
    os.environ["FLOW_HOME"] = str(home)
    try:
        yield home
    finally:
        os.environ.pop("FLOW_HOME")
        if before is not None:
            os.environ["FLOW_HOME"] = before
        shutil.rmtree(home, ignore_errors=True)


def environment() -> dict[str, str]:
    """What every contestant runs in: commands of this environment found, byte code cached, one thread per process."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
    return {**inherited, "PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"}


def python(*arguments: str | Path) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *map(str, arguments)]


def command(*commands: Sequence[str], marks: int = 0) -> Run:
    """Runs commands side by side until all have ended.

    Args:
        commands: The argument vectors; MARKS in them stands for a fresh directory.
        marks: How many workers leave a mark there: a file named by rank that holds `time.monotonic()`. A program
            that measures itself leaves its seconds there in a file `seconds`.

    Raises:
        RuntimeError: One of them failed; the message ends with its output.
    """
    directory = Path(tempfile.mkdtemp(prefix="flow-marks-"))
    named = [[str(directory) if word == MARKS else word for word in argv] for argv in commands]
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        children = [
            subprocess.Popen(argv, env=environment(), cwd=directory, stdout=output, stderr=output)
            for argv in named
        ]
        peaks = []
        for child in children:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            peaks.append(usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2))
        seconds = time.monotonic() - start
        output.seek(0)
        text = output.read().decode(errors="replace")
    found = [float(path.read_text()) for path in directory.iterdir() if path.name.isdigit()]
    reached = _noted(directory / "seconds", max(found, default=start) - start)
    own = _noted(directory / "own", 0.0)
    shutil.rmtree(directory)
    if any(child.returncode for child in children) or len(found) != marks:
        codes = [child.returncode for child in children]
        raise RuntimeError(f"{named} ended with {codes}, {len(found)} marks: {text[-3000:]}")
    return Run(seconds, reached, max(peaks), own)


def processor_time(*argv: str) -> Run:
    """Runs a command. `reached` is the processor time of it and of all that it leaves behind, `own` its own."""
    return command(python(PROGRAMS / "processor_time.py", MARKS, *argv))


def _noted(path: Path, otherwise: float) -> float:
    return float(path.read_text()) if path.exists() else otherwise


def interleave(
    contestants: Mapping[str, Callable[[], Run]], rounds: int, warm_up: int = 1
) -> dict[str, Run]:
    """Runs all in turn, `rounds` times, each round beginning with another; returns the medians.

    The first `warm_up` rounds fill caches (byte code, the agent's archive) and do not count.
    """
    names = list(contestants)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            run = contestants[name]()
            if number >= warm_up:
                runs[name].append(run)
    return {name: median(taken) for name, taken in runs.items()}


def median(runs: Sequence[Run]) -> Run:
    """Medians of the times, the largest of the memory."""
    return Run(
        statistics.median(run.seconds for run in runs),
        statistics.median(run.reached for run in runs),
        max(run.peak_mb for run in runs),
        statistics.median(run.own for run in runs),
    )
