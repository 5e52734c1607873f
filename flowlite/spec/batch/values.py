"""Parses values of sbatch's options: arrays, memory sizes, GPUs, signals. Pure."""

from __future__ import annotations

import re

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.sbatch.getopt import OptionError
from flowlite.node.sbatch.srun_options import signal_number

MOST_ELEMENTS = 10_000
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE | re.ASCII)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_DEFAULT_NOTICE = 60.0


@dataclass(frozen=True, slots=True)
class Array:
    """`--array`: the ids of its tasks, and how many may run at a time; None for all."""

    ids: tuple[int, ...]
    at_once: int | None

    @property
    def step(self) -> int:
        """SLURM_ARRAY_TASK_STEP: the distance of the first two ids, if it is the same for all of them."""
        gaps = {b - a for a, b in zip(self.ids, self.ids[1:], strict=False)}
        return gaps.pop() if len(gaps) == 1 else 1


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that an option asks for: how many, and their type in the cluster's notation ("" for any)."""

    count: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """`--signal`: which signal is sent, how long before the end, and whether to the script alone or to the tasks."""

    signal: str
    seconds: float
    script: bool


def array(text: str) -> Array:
    """`0-4`, `1,3,5-9:2%2`. Raises OptionError."""
    body, percent, limit = text.partition("%")
    if percent and not (limit.isdecimal() and int(limit)):
        raise OptionError(f"--array={text}: behind % stands how many may run at a time")
    found: set[int] = set()
    for part in body.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part, re.ASCII)
        if match is None or (match[3] is not None and not int(match[3])):
            raise OptionError(f"--array={text}: {part!r} is no range; write 0-4, 0-8:2 or 1,3,5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise OptionError(f"--array={text}: {part} ends before it begins")
        found.update(range(first, last + 1, int(match[3] or 1))[: MOST_ELEMENTS + 1])
        if len(found) > MOST_ELEMENTS:
            raise OptionError(f"--array={text}: more than {MOST_ELEMENTS} tasks")
    return Array(tuple(sorted(found)), int(limit) if percent else None)


def mebibytes(name: str, text: str) -> float:
    """`64G`, `2000` (MiB), `1T`; 0 for all of a node. Raises OptionError."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"--{name}={text}: give a size, as in {name}=64G")
    return int(match[1]) * _MIB[match[2].upper()]


def gpus(name: str, text: str) -> Gpus:
    """`4`, `h100:4`, or several of them with commas. Raises OptionError."""
    total, kinds = 0, set()
    for part in text.split(","):
        kind, _, count = part.rpartition(":")
        if not count.isdecimal():
            raise OptionError(f"--{name}={text}: give a number, or TYPE:NUMBER")
        total += int(count)
        kinds.add(kind)
    return Gpus(total, kinds.pop() if len(kinds) == 1 else "")


def gres(text: str) -> tuple[Gpus | None, list[str]]:
    """The GPUs among generic resources such as `gpu:a100:4,license:2`, and the others. Raises OptionError."""
    found: Gpus | None = None
    others = []
    for part in re.split(r",(?![^(]*\))", text):
        name, *rest = re.sub(r"\([^)]*\)", "", part).removeprefix("gres/").split(":")
        if name.lower() not in ("gpu", "gpu=") and not name.lower().startswith("gpu="):
            others.append(part)
            continue
        if "=" in name:
            rest = [name.partition("=")[2]]
        if not rest or (len(rest) == 1 and not rest[0].isdecimal()):
            rest = [*rest, "1"]
        if len(rest) > 2:
            raise OptionError(f"--gres={text}: write gpu:NUMBER or gpu:TYPE:NUMBER")
        more = gpus("gres", ":".join(rest))
        kind = more.kind if found is None or found.kind == more.kind else ""
        found = Gpus(more.count + (found.count if found else 0), kind)
    return found, others


def notice(text: str) -> Notice:
    """`[{R|B}:]USR1[@60]`. Raises OptionError."""
    flags, colon, rest = text.rpartition(":")
    if colon and not set(flags.upper()) <= set("RB:"):
        raise OptionError(f"--signal={text}: before the colon stands B, R or nothing")
    name, _, seconds = rest.partition("@")
    if seconds and not seconds.isdecimal():
        raise OptionError(f"--signal={text}: behind @ stands a number of seconds")
    signal_number(name)
    return Notice(name, float(seconds) if seconds else _DEFAULT_NOTICE, "B" in flags.upper())


def most_nodes(text: str) -> tuple[int, int]:
    """The smallest and largest number of `--nodes`. Raises OptionError."""
    least, _, most = text.partition("-")
    if not least.isdecimal() or not int(least) or (most and not most.isdecimal()):
        raise OptionError(f"--nodes={text}: give a number, as in --nodes=2")
    return int(least), int(most or least)


def whole(name: str, text: str) -> int:
    """A whole number of at least 1. Raises OptionError."""
    if not text.isdecimal() or not int(text):
        raise OptionError(f"--{name}={text}: give a whole number of at least 1")
    return int(text)
