"""Patterns of `outputs=`: paths relative to the working directory, with wildcards.

`*` and `?` match anything but a slash, `[…]` matches one of a set of characters, and `**` as a whole path component
matches any number of directories. A pattern that matches a directory stands for everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_WILD = re.compile(r"[*?\[]")


def problem(pattern: str) -> str:
    """Returns why a text is not a valid pattern; "" if it is valid."""
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
    """Returns the path components of a pattern, without empty ones and "."."""
    return [part for part in pattern.split("/") if part not in ("", ".")]


def expression(patterns: Iterable[str]) -> re.Pattern[str]:
    """Returns a regular expression that matches the relative path of every file that fits one of the patterns."""
    each = [_one(parts_of(pattern)) for pattern in patterns]
    return re.compile(f"(?:{'|'.join(each)})(?:/.*)?" if each else r"(?!)", re.DOTALL)


def roots(patterns: Sequence[str]) -> list[str]:
    """Returns the relative paths to search: everything that the patterns can match is at or below one of them.

    "" is the working directory itself.
    """
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
    """Returns the regular expression of one path component."""
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
    """Returns the position of the closing bracket; -1 if there is none, so that the opening one is literal."""
    first = begin + 1 if part[begin : begin + 1] in ("!", "^") else begin
    return part.find("]", first + 1)


def _set(inside: str) -> str:
    negated = inside[0] in "!^"
    characters = inside[1:] if negated else inside
    escaped = re.sub(r"([\\\]\[^&~|])", r"\\\1", characters)
    try:
        re.compile(f"[{escaped}]")
    except re.error:
        # An invalid set, such as a reversed range, matches nothing.
        return "(?!)"
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
