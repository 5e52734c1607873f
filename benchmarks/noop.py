"""`.remote()` of a function that does nothing, four workers, beside submitit, torchx and bare interpreters."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import MARKS, PROGRAMS, Run, command, fresh_home, interleave, python
from benchmarks.table import Row, seconds


def measure(rounds: int) -> list[Row]:
    """Rows for the call alone and for the whole command."""
    with fresh_home():
        medians = interleave(
            {"flowlite": _flowlite, "submitit": _submitit, "torchx": _torchx, "bare": _bare}, rounds
        )
    ours, submitit, torchx, bare = medians.values()
    call = "`.remote()` of a no-op, 2 x 2"
    return [
        Row(
            f"{call}: the call",
            seconds(ours.reached),
            f"submitit local, 4 tasks: {seconds(submitit.reached)}",
            ours.reached / submitit.reached,
            "<= 0.5 s and < 1",
            ours.reached <= 0.5 and ours.reached < submitit.reached,
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


def _submitit() -> Run:
    return command(python(PROGRAMS / "noop_submitit.py", MARKS))


def _torchx() -> Run:
    torchx = str(Path(sys.executable).with_name("torchx"))
    component = ("dist.ddp", "-j", "2x2", "--script", str(PROGRAMS / "noop_script.py"))
    return command([torchx, "run", "--scheduler", "local_cwd", *component])


def _bare() -> Run:
    return command(*[python("-c", "pass")] * 4)
