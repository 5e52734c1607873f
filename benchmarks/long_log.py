"""`flow logs` of a finished task that has written 10 GB: to its first line, the last lines, and lines since a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from functools import partial

from benchmarks.measure import PROGRAMS, Run, environment, fresh_home, interleave, python
from benchmarks.table import Row, seconds

SIZE = 10**10
_SPARE = 2 * 10**9
# The log was written in a day, so this is a twenty-fourth of it.
SINCE = "1h"


def measure(rounds: int) -> list[Row]:
    """A row for each question, and one for the memory of all; none where the disk has no room."""
    with fresh_home() as home:
        if shutil.disk_usage(home).free < SIZE + _SPARE:
            print(f"long_log: not measured, {home} has no room for a log of {SIZE // 10**9} GB")
            return []
        made = subprocess.run(
            python(PROGRAMS / "make_long_log.py", str(SIZE)),
            env=environment(),
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        task = made.stdout.strip()
        medians = interleave(
            {
                "all": partial(_first_line, task),
                "tail": partial(_first_line, task, "--tail", "100"),
                "since": partial(_first_line, task, "--since", SINCE),
                "rank": partial(_whole, task, "--rank", "0"),
            },
            rounds,
        )
    name = f"`flow logs` of a finished task with {SIZE // 10**9} GB"
    rows = [
        Row(
            f"{name}{options}: to the first line",
            seconds(medians[kind].seconds),
            to_reach=f"<= {bound} s",
            reached=medians[kind].seconds <= bound,
        )
        for kind, options, bound in (
            ("all", "", 0.2),
            ("tail", ", `--tail 100`", 0.3),
            ("since", f", `--since {SINCE}`", 0.3),
        )
    ]
    whole = medians["rank"]
    rows.append(
        Row(
            f"{name}, one rank of 8, to the end",
            f"{SIZE / 8 / whole.seconds / 1e6:.0f} MB/s, {whole.peak_mb:.0f} MB of memory",
        )
    )
    return rows


def _first_line(task: str, *options: str) -> Run:
    return _printed(task, options, whole=False)


def _whole(task: str, *options: str) -> Run:
    return _printed(task, options, whole=True)


def _printed(task: str, options: tuple[str, ...], *, whole: bool) -> Run:
    """The seconds to the first line, or to the end, and the memory by then."""
    argv = python("-m", "flowlite.cli", "logs", task, *options)
    began = time.monotonic()
    child = subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE)
    assert child.stdout is not None
    printed = os.read(child.stdout.fileno(), 1 << 20)
    while whole and os.read(child.stdout.fileno(), 1 << 20):
        pass
    taken = time.monotonic() - began
    child.stdout.close()
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    if not printed.startswith(b"["):
        raise RuntimeError(f"flow logs {options} printed {printed[:100]!r}")
    return Run(taken, peak_mb=usage.ru_maxrss / 1024)
