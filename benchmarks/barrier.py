"""From the command's start to "all ranks passed a gloo barrier", and to the command's end, beside torchrun."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from benchmarks.measure import MARKS, PROGRAMS, Run, command, fresh_home, interleave, python
from benchmarks.table import Row, seconds

PER_NODE = 2


def measure(rounds: int) -> list[Row]:
    """Rows for 2 x 2 and 4 x 2."""
    with fresh_home():
        return [
            *_rows(2, rounds, inside=0.5, top=0.8, script=0.45),
            *_rows(4, rounds, inside=0.4, top=None, script=0.25),
        ]


def _rows(nodes: int, rounds: int, *, inside: float, top: float | None, script: float) -> list[Row]:
    contestants: dict[str, Callable[[], Run]] = {
        "torchrun": partial(torchrun, nodes, "barrier_script.py"),
        "torch imported in the function": partial(_function, nodes, "barrier_inside.py"),
        "torch imported at the top": partial(_function, nodes, "barrier_top.py"),
        "`flow run --` of torchrun's script": partial(_flow_run, nodes),
    }
    medians = interleave(contestants, rounds)
    peer = medians.pop("torchrun")
    bounds = {
        "torch imported in the function": inside,
        "torch imported at the top": top,
        "`flow run --` of torchrun's script": script,
    }
    rows = []
    for name, run in medians.items():
        bound, ratio = bounds.get(name), run.seconds / peer.seconds
        what = f"gloo barrier {nodes} x {PER_NODE}, {name}"
        rows.append(
            Row(
                f"{what}: to the command's end",
                seconds(run.seconds),
                f"torchrun {seconds(peer.seconds)}",
                ratio,
                f"<= {bound}" if bound else "",
                ratio <= bound if bound else None,
            )
        )
        rows.append(
            Row(
                f"{what}: to the last rank past it",
                seconds(run.reached),
                f"torchrun {seconds(peer.reached)}",
                run.reached / peer.reached,
            )
        )
    return rows


def torchrun(nodes: int, program: str) -> Run:
    """A gang of torchrun's on this machine, one launcher for each node."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"--nnodes={nodes}", f"--nproc-per-node={PER_NODE}", "--master-addr=127.0.0.1"]
    script = str(PROGRAMS / program)
    launch = ("-m", "torch.distributed.run", *options, f"--master-port={port}")
    return command(
        *(python(*launch, f"--node-rank={rank}", script, MARKS) for rank in range(nodes)),
        marks=nodes * PER_NODE,
    )


def _function(nodes: int, program: str) -> Run:
    return command(python(PROGRAMS / program, str(nodes), MARKS), marks=nodes * PER_NODE)


def _flow_run(nodes: int) -> Run:
    options = ("run", "-N", str(nodes), "--processes-per-node", str(PER_NODE), "--")
    script = python(PROGRAMS / "barrier_script.py", MARKS)
    return command(python("-m", "flowlite.cli", *options, *script), marks=nodes * PER_NODE)
