"""Parses Slurm's host lists: `gpu[01-03,7],login`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 100_000


def expand(text: str) -> list[str]:
    """The host names of a list, in order. Raises ValueError."""
    names = [name for part in _parts(text) for name in _names(part)]
    if len(names) > _MOST:
        raise ValueError(f"{text!r} stands for more than {_MOST} nodes")
    return names


def _parts(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets."""
    depth, begin = 0, 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError(f"{text!r} is no list of nodes")
        if character == "," and depth == 0:
            yield text[begin:position]
            begin = position + 1
    if depth:
        raise ValueError(f"{text!r} is no list of nodes")
    if text:
        yield text[begin:]


def _names(part: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    if not part or any(not each for each in pieces[1::2]):
        raise ValueError(f"{part!r} names no node")
    choices = [
        [piece] if position % 2 == 0 else list(_numbers(piece))
        for position, piece in enumerate(pieces)
    ]
    total = 1
    for each in choices:
        total *= len(each)
        if total > _MOST:
            raise ValueError(f"{part!r} stands for more than {_MOST} nodes")
    return ["".join(each) for each in itertools.product(*choices)]


def _numbers(text: str) -> Iterator[str]:
    for each in text.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            raise ValueError(f"{each!r} is no range of numbers")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) > _MOST or int(last) < int(first):
            raise ValueError(f"{each!r} is no range of numbers")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
