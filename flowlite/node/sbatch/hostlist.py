"""Reads and writes Slurm's notation for many hosts: `node[01-03,7],login`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product

MOST = 100_000
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


class HostlistError(ValueError):
    """The text is not a list of hosts; the message says where it breaks."""


def expand(text: str) -> list[str]:
    """Returns all hosts of a list, in its order. Raises HostlistError."""
    found: list[str] = []
    for part in _split(text):
        found += _expand_one(part)
        if len(found) > MOST:
            raise HostlistError(f"more than {MOST} hosts")
    return found


def compress(hosts: Iterable[str]) -> str:
    """Writes many hosts as one text. Consecutive numbered names are combined, in their order; addresses are not."""
    groups: list[tuple[str, list[str]]] = []
    for host in hosts:
        match = None if _is_address(host) else _NUMBERED.fullmatch(host)
        prefix, number = (match[1], match[2]) if match else (host, "")
        if number and groups and groups[-1][0] == prefix and groups[-1][1]:
            groups[-1][1].append(number)
        else:
            groups.append((prefix, [number] if number else []))
    return ",".join(_written(prefix, numbers) for prefix, numbers in groups)


def order(host: str) -> tuple[str, int, int]:
    """Returns what sorts hosts: their names, and the numbers at the end by value."""
    match = None if _is_address(host) else _NUMBERED.fullmatch(host)
    return (match[1], int(match[2]), len(match[2])) if match else (host, -1, 0)


def repeated(counts: Sequence[int]) -> str:
    """Writes numbers with repetition counts, as in SLURM_TASKS_PER_NODE: `4(x2),1`."""
    found: list[list[int]] = []
    for count in counts:
        if found and found[-1][0] == count:
            found[-1][1] += 1
        else:
            found.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in found)


def _split(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise HostlistError(f"brackets do not fit in {text!r}")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    if depth:
        raise HostlistError(f"a bracket is not closed in {text!r}")
    return [each.strip() for each in [*parts, part] if each.strip()]


def _expand_one(part: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [_range(piece) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MOST:
        raise HostlistError(f"more than {MOST} hosts in {part!r}")
    return ["".join(each) for each in product(*choices)]


def _range(text: str) -> list[str]:
    found: list[str] = []
    for each in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", each, re.ASCII)
        if match is None:
            raise HostlistError(f"[{text}] is no range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise HostlistError(f"[{text}] is no range of numbers")
        if int(last) - int(first) > MOST:
            raise HostlistError(f"more than {MOST} hosts in [{text}]")
        found += [
            str(number).zfill(len(first) if first.startswith("0") else 0)
            for number in range(int(first), int(last) + 1)
        ]
    return found


def _is_address(host: str) -> bool:
    return ":" in host or re.fullmatch(r"[\d.]+", host) is not None


def _written(prefix: str, numbers: Sequence[str]) -> str:
    if len(numbers) < 2:
        return prefix + "".join(numbers)
    spans: list[tuple[str, str]] = []
    for number in numbers:
        if spans and int(number) == int(spans[-1][1]) + 1 and _counts_on(spans[-1][1], number):
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    inside = ",".join(first if first == last else f"{first}-{last}" for first, last in spans)
    return f"{prefix}[{inside}]"


def _counts_on(before: str, after: str) -> bool:
    """Whether a range that ends with `after` yields it as it is written: 09 to 10, 9 to 10, not 9 to 010."""
    if before.startswith("0") and len(before) > 1:
        return len(before) == len(after)
    return not after.startswith("0")
