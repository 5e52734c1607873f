"""Finds the programs of Slurm itself that ours stand in for, on a node that has Slurm."""

from __future__ import annotations

import os
from pathlib import Path

from .rendezvous_file import JobFacts, programs


def find(name: str, attempt: Path) -> str | None:
    """Returns the path of Slurm's own program, if it is on the PATH behind ours."""
    ours = os.path.realpath(programs(attempt))
    for directory in os.environ.get("PATH", "").split(":"):
        found = os.path.join(directory, name)
        other = directory and os.path.realpath(directory) != ours
        if other and os.access(found, os.X_OK) and not _is_ours(found, name):
            return found
    return None


def of_another_job(name: str, attempt: Path, ground: JobFacts) -> str | None:
    """Returns Slurm's own program for a caller in another job than the gang's; None in the gang.

    A script may submit jobs with `sbatch`, which get its whole environment, and our programs with PATH. On a node of
    the gang they exist for such a job, too.
    """
    if os.environ.get("SLURM_JOB_ID", ground.job) == ground.job:
        return None
    return find(name, attempt)


def _is_ours(path: str, name: str) -> bool:
    """Whether it is flowlite's wrapper, of any node of this gang."""
    try:
        with open(path, "rb") as file:
            return file.read(10) == b"#!/bin/sh\n" and f" {name} ".encode() in file.read(4096)
    except OSError:
        return False
