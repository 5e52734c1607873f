"""Programs that only start another program, such as `env` and `nohup`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
"""A variable that is set for one command."""

# Each with those of its options that take a value.
_WRAPPERS: Mapping[str, tuple[str, ...]] = {
    "env": ("-u", "--unset", "-C", "--chdir"),
    "exec": ("-a",),
    "nohup": (),
    "setsid": (),
    "nice": ("-n", "--adjustment"),
    "ionice": ("-c", "-n"),
    "numactl": (
        *("-N", "--cpunodebind", "-m", "--membind", "-C", "--physcpubind"),
        *("-i", "--interleave", "-p", "--preferred"),
    ),
    "stdbuf": ("-i", "-o", "-e"),
    "taskset": (),
    "time": ("-f", "-o"),
    "timeout": ("-k", "--kill-after", "-s", "--signal"),
    "command": (),
}
# How many words come between its options and the command.
_POSITIONAL = {"taskset": 1, "timeout": 1}


def wrapped(words: Sequence[str]) -> list[str]:
    """Returns the command behind all wrappers; empty if there is none, or it is not certain."""
    left = list(words)
    while left and (name := left[0].rpartition("/")[2]) in _WRAPPERS:
        left = _behind(name, left[1:])
    return left


def _behind(name: str, rest: Sequence[str]) -> list[str]:
    left = list(rest)
    while left and (left[0].startswith("-") or (name == "env" and ASSIGNMENT.fullmatch(left[0]))):
        option = left.pop(0)
        if option == "--":
            break
        if name == "env" and option.startswith(("-S", "--split-string")):
            return []
        if name == "command" and option in ("-v", "-V"):
            return []
        if option in _WRAPPERS[name]:
            del left[:1]
    if name == "env":
        while left and ASSIGNMENT.fullmatch(left[0]):
            del left[0]
    return left[_POSITIONAL.get(name, 0) :]
