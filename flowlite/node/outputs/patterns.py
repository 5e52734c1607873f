"""Patterns of `outputs=`: paths relative to the working directory, with wildcards.

`*` and `?` stand for anything but a slash, `[…]` for one of some characters, `**` as a whole part for any number of
directories. A pattern that fits a directory stands for all that is below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_WILD = re.compile(r"[*?\[]")


def problem(pattern: str) -> str:
    """Why a text is no pattern; "" if it is one."""
    if not pattern or "\0" in pattern or "\n" in pattern:
        return "give a path, as in 'runs/**'"
    if pattern.startswith(("/", "~")):
        return "it is relative to the working directory, as in 'runs/**'"
    if ".." in pattern.split("/"):
        return "it cannot lead out of the working directory"
    if not parts_of(pattern):
        return "give '**' for all files"
    return ""


def parts_of(pattern: str) -> list[str]:
    """The parts between slashes that say something."""
    return [part for part in pattern.split("/") if part not in ("", ".")]


def expression(patterns: Iterable[str]) -> re.Pattern[str]:
    """Fits the relative paths of all files that one of the patterns stands for."""
    each = [_one(parts_of(pattern)) for pattern in patterns]
    return re.compile(f"(?:{'|'.join(each)})(?:/.*)?" if each else r"(?!)", re.DOTALL)


def roots(patterns: Sequence[str]) -> list[str]:
    """Relative directories, or files, below which all is that the patterns can fit; "" for the working directory."""
    found = set()
    for pattern in patterns:
        plain: list[str] = []
        for part in parts_of(pattern):
            if _WILD.search(part):
                break
            plain.append(part)
        found.add("/".join(plain))
    return sorted(each for each in found if not any(_is_below(each, other) for other in found))


def _is_below(path: str, other: str) -> bool:
    return path != other and (other == "" or path.startswith(f"{other}/"))


def _one(parts: Sequence[str]) -> str:
    found = ""
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part == "**":
            found += ".+" if last else "(?:[^/]+/)*"
        else:
            found += _part(part) + ("" if last else "/")
    return found


def _part(part: str) -> str:
    """One part, without slashes."""
    found, position = "", 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            found += "[^/]*"
        elif character == "?":
            found += "[^/]"
        elif character == "[" and (end := _end_of_set(part, position)) >= 0:
            found += _set(part[position:end])
            position = end + 1
        else:
            found += re.escape(character)
    return found


def _end_of_set(part: str, begin: int) -> int:
    """Where the bracket is closed; -1 if it is not, and stands for itself."""
    first = begin + 1 if part[begin : begin + 1] in ("!", "^") else begin
    return part.find("]", first + 1)


def _set(inside: str) -> str:
    negated = inside[0] in "!^"
    characters = inside[1:] if negated else inside
    escaped = re.sub(r"([\\\]\[^&~|])", r"\\\1", characters)
    try:
        re.compile(f"[{escaped}]")
    except re.error:
        # Such as a range that ends before it begins: it fits nothing.
        return "(?!)"
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
