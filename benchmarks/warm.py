"""The next run on warm nodes, 2 x 2: a gloo barrier and 20 DDP steps, beside torchrun of the same script."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial

from benchmarks.barrier import torchrun
from benchmarks.measure import MARKS, PROGRAMS, Run, command, fresh_home, interleave, python
from benchmarks.pool import pool
from benchmarks.table import Row, seconds
from flowlite.testing import hosts

NODES, PER_NODE = 2, 2
LOCAL_BOUND, SSH_BOUND = 0.15, 0.2
SCRIPT_LOCAL_BOUND, SCRIPT_SSH_BOUND = 0.12, 0.15


def measure(rounds: int) -> list[Row]:
    """Rows for this machine and for hosts reached by SSH."""
    with fresh_home():
        rows = _rows("local", rounds, LOCAL_BOUND, SCRIPT_LOCAL_BOUND, MARKS)
    if reason := hosts.why_not():
        print(f"warm: no rows over SSH: {reason}")
        return rows
    with pool(NODES):
        # The hosts have a /tmp of their own, so that the marks of their ranks are not seen here.
        return rows + _rows("over SSH", rounds, SSH_BOUND, SCRIPT_SSH_BOUND, "/tmp")


def _rows(where: str, rounds: int, bound: float, script_bound: float, marks: str) -> list[Row]:
    contestants: dict[str, Callable[[], Run]] = {
        "torchrun": partial(torchrun, NODES, "warm_script.py"),
        "twice": partial(_flowlite, 2),
        "once": partial(_flowlite, 1),
        "script": partial(_script, marks),
    }
    try:
        medians = interleave(contestants, rounds)
    finally:
        gc = python("-m", "flowlite.cli", "gc", "--warm")
        subprocess.run(gc, check=False, stdout=subprocess.DEVNULL)
    peer = medians["torchrun"].seconds
    beside = f"torchrun {seconds(peer)}"
    what = f"20 DDP steps {NODES} x {PER_NODE} on warm nodes, {where}"
    call, whole = medians["twice"].reached, medians["once"].seconds
    script = medians["script"].seconds
    return [
        Row(
            f"{what}: second `.remote()`",
            seconds(call),
            beside,
            call / peer,
            f"<= {bound}",
            call / peer <= bound,
        ),
        Row(
            f"{what}: a new client, to the command's end",
            seconds(whole),
            beside,
            whole / peer,
            f"<= {bound}",
            whole / peer <= bound,
        ),
        Row(
            f"{what}: the next `flow run --` of torchrun's script, to the command's end",
            seconds(script),
            beside,
            script / peer,
            f"<= {script_bound}",
            script / peer <= script_bound,
        ),
    ]


def _flowlite(times: int) -> Run:
    return command(python(PROGRAMS / "warm_flowlite.py", str(times), MARKS))


def _script(marks: str) -> Run:
    options = ("-N", str(NODES), "--processes-per-node", str(PER_NODE), "--keep-warm", "10m")
    environment = ("--env", "OMP_NUM_THREADS=1")
    script = ("python", str(PROGRAMS / "warm_script.py"), marks)
    run = ("-m", "flowlite.cli", "run", *options, *environment, "--", *script)
    return command(python(*run), marks=NODES * PER_NODE if marks == MARKS else 0)
