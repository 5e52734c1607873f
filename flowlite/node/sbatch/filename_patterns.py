"""Slurm's %-patterns in names of output files: %j, %t, %N and so on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..quick_dataclass import dataclass

_SIGN = re.compile(r"%(\d*)([%AajJNnstux])")
_OF_A_TASK = frozenset("Nnt")


@dataclass(frozen=True, slots=True)
class Names:
    """The values of the patterns. `environment` has the others: job name, array, user."""

    job: str
    step: str
    task: str
    node: str
    host: str
    environment: Mapping[str, str]


def is_of_a_task(pattern: str) -> bool:
    """Whether the pattern gives each task (or node) a file of its own."""
    return any(match[2] in _OF_A_TASK for match in _SIGN.finditer(pattern))


def is_of_one_task(pattern: str) -> bool:
    """Whether the pattern gives each task a file of its own."""
    return "\\" not in pattern and any(match[2] == "t" for match in _SIGN.finditer(pattern))


def fill(pattern: str, names: Names) -> str:
    """Returns the name of a file. As in Slurm, a backslash in the pattern turns off all replacement."""
    if "\\" in pattern:
        return pattern.replace("\\", "")
    variables = names.environment
    found = {
        "%": "%",
        "A": variables.get("SLURM_ARRAY_JOB_ID", names.job),
        "a": variables.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "J": f"{names.job}.{names.step}",
        "j": names.job,
        "N": names.host,
        "n": names.node,
        "s": names.step,
        "t": names.task,
        "u": variables.get("USER", ""),
        "x": variables.get("SLURM_JOB_NAME", ""),
    }

    def put(match: re.Match[str]) -> str:
        value = found[match[2]]
        return value.zfill(min(int(match[1]), 10)) if match[1] and value.isdecimal() else value

    return _SIGN.sub(put, pattern)
