"""The programs that start the processes of a gang themselves, and whether a command uses one of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .command_wrappers import wrapped

MPI = (
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "mpiexec.openmpi",
    "mpirun.openmpi",
    "orterun",
    "prterun",
)
ALL = (*MPI, "horovodrun", "deepspeed")
DAEMONS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
"""The programs that `mpirun` starts on the other nodes: Open MPI 4 and 5, MPICH, Intel MPI."""
_SHELLS = ("sh", "bash", "dash", "zsh")
_WORD = re.compile(r"[^\s;&|()'\"`$]+")


def starts_ranks(argv: Sequence[str]) -> bool:
    """Whether a command starts the processes of the gang itself, so that it runs once.

    This holds for a command that contains the name of a launcher, and for a shell script.
    """
    words = wrapped(argv)
    program = name(words[0]) if words else ""
    if program in ALL or program.endswith(".sh"):
        return True
    if program in _SHELLS:
        text = words[2] if len(words) > 2 and words[1] == "-c" else None
        if text is None:
            return True
        found = _WORD.findall(text)
        return any(name(word) in ALL or name(word).endswith(".sh") for word in found)
    return any(name(word) in ALL for word in argv)


def program(call: Mapping[str, Any]) -> str:
    """Returns the program that starts the processes of a call: the command's own launcher, or `mpirun`."""
    if call["kind"] == "command" and starts_ranks(call["argv"]):
        return str(call["argv"][0])
    return "mpirun"


def name(word: str) -> str:
    """Returns the name of a program without its directory."""
    return word.rpartition("/")[2]
