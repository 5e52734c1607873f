"""Finds commands in a batch script that will not exist on the nodes, or not do what they do under Slurm.

This only searches the text: a shell script can hide commands from it. Those are reported when they run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from flowlite.node.sbatch.srun_options import refusals

_MISSING = (
    *("sbatch", "salloc", "sattach", "sbcast", "scancel", "sinfo", "squeue", "sacct", "sstat"),
    *("sprio", "sreport", "strigger"),
)
_BEFORE = r"(?:^|[;&|(]|\$\(|`|\b(?:then|do|else|exec|time|nohup|if|while|!)\s)\s*"
_SRUN = re.compile(_BEFORE + r"srun\s+(.*)")
_ABSENT = re.compile(_BEFORE + rf"({'|'.join(_MISSING)})\b")
# Mostly in a trap.
_REQUEUE = re.compile(r"\bscontrol\s+requeue(?:hold)?\b")
_MPI = re.compile(_BEFORE + r"(mpirun|mpiexec|horovodrun)\b")


def look(text: str) -> list[str]:
    """Sentences about commands that will be missing or behave differently, each with its line number."""
    found = []
    for number, line in _lines(text):
        for match in _SRUN.finditer(line):
            found += [f"line {number}: srun: {why}" for why in _refused(match[1])]
        if absent := _ABSENT.search(line):
            found.append(f"line {number}: {absent[1]} is not there outside Slurm")
        if again := _REQUEUE.search(line):
            found.append(
                f"line {number}: {again[0]} is not there outside Slurm: nothing starts the script again when it ends "
                "with success; let it fail, with retries (--retries N)"
            )
        if mpi := _MPI.search(line):
            found.append(
                f"line {number}: {mpi[1]} knows the nodes only under distributed_mode='mpi'; here it starts "
                "processes on node 0 alone"
            )
    return found


def _refused(words: str) -> list[str]:
    try:
        return refusals(shlex.split(words, comments=True))
    except ValueError:
        return []


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of code with their numbers. Continued lines are joined; comments and printed text are left out."""
    whole, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first or number
        whole += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if whole.strip() and not whole.lstrip().startswith(("#", "echo ", "printf ")):
            yield first, whole.strip()
        whole, first = "", 0
