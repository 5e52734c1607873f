"""From the first failure of a gang, whose other ranks sit in no collective, to the end of its last worker."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, fresh_home, python
from benchmarks.processes import of_home, wait_for
from benchmarks.table import Row, seconds

BOUND = 2.0


def measure(rounds: int) -> list[Row]:
    """One row: workers that obey SIGTERM."""
    with fresh_home() as home:
        taken = [_once(home) for _ in range(rounds)]
    median = statistics.median(taken)
    return [
        Row(
            "gang of 2 x 2 stopped after its first failure",
            seconds(median),
            f"worst of {rounds}: {seconds(max(taken))}",
            to_reach=f"<= {BOUND:.0f} s",
            reached=max(taken) <= BOUND,
        )
    ]


def _once(home: Path) -> float:
    with tempfile.TemporaryDirectory() as directory:
        failed = Path(directory, "failed")
        program = python(PROGRAMS / "waiting.py", directory, "fail")
        subprocess.run(program, env=environment(), check=True, capture_output=True)
        wait_for(lambda: failed.exists() and failed.read_text() != "", "rank 3 failed")
        workers = [int(path.read_text()) for path in Path(directory).glob("*.pid")]
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers gone")
        ended = time.monotonic()
        wait_for(lambda: not of_home(home), "the task's processes gone")
        return ended - float(failed.read_text())
