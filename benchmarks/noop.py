"""`.remote()` of a function that does nothing, four workers, beside submitit, torchx and bare interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import MARKS, PROGRAMS, Run, command, fresh_home, interleave, python
from benchmarks.table import Row, seconds

BOUND, WARM_BOUND = 0.25, 0.35


def measure(rounds: int) -> list[Row]:
    """Rows for the call alone, for the whole command, and for the second call on warm nodes."""
    contestants = {
        "flowlite": _flowlite,
        "second": _second,
        "submitit": _submitit,
        "torchx": _torchx,
        "bare": _bare,
    }
    with fresh_home():
        try:
            medians = interleave(contestants, rounds)
        finally:
            gc = python("-m", "flowlite.cli", "gc", "--warm")
            subprocess.run(gc, check=False, stdout=subprocess.DEVNULL)
    ours, second, submitit, torchx, bare = medians.values()
    call = "`.remote()` of a no-op, 2 x 2"
    return [
        Row(
            f"{call}: the call",
            seconds(ours.reached),
            f"submitit local, 4 tasks: {seconds(submitit.reached)}",
            ours.reached / submitit.reached,
            f"<= {BOUND} s and < 1",
            ours.reached <= BOUND and ours.reached < submitit.reached,
        ),
        Row(
            f"{call}: the second call, on warm nodes",
            seconds(second.reached),
            f"submitit local, 4 tasks: {seconds(submitit.reached)}",
            second.reached / submitit.reached,
            f"<= {WARM_BOUND} s and < 1",
            second.reached <= WARM_BOUND and second.reached < submitit.reached,
        ),
        _command_row(call, ours, "submitit local, 4 tasks", submitit, faster=True),
        _command_row(call, ours, "torchx local_cwd, 2 x 2", torchx, faster=True),
        _command_row(call, ours, "4 x `python -c pass`", bare, faster=False),
    ]


def _command_row(call: str, ours: Run, peer: str, theirs: Run, *, faster: bool) -> Row:
    ratio = ours.seconds / theirs.seconds
    return Row(
        f"{call}: the whole command",
        seconds(ours.seconds),
        f"{peer}: {seconds(theirs.seconds)}",
        ratio,
        "< 1" if faster else "",
        ratio < 1 if faster else None,
    )


def _flowlite() -> Run:
    return command(python(PROGRAMS / "noop_flowlite.py", MARKS))


def _second() -> Run:
    return command(python(PROGRAMS / "noop_warm.py", MARKS))


def _submitit() -> Run:
    return command(python(PROGRAMS / "noop_submitit.py", MARKS))


def _torchx() -> Run:
    torchx = str(Path(sys.executable).with_name("torchx"))
    component = ("dist.ddp", "-j", "2x2", "--script", str(PROGRAMS / "noop_script.py"))
    return command([torchx, "run", "--scheduler", "local_cwd", *component])


def _bare() -> Run:
    return command(*[python("-c", "pass")] * 4)
