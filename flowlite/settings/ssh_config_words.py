"""Parses lines of an OpenSSH configuration: keyword, words, and the files of an `Include`, as in ssh_config(5)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from glob import glob, has_magic

DEEPEST_INCLUDE = 16
"""How deep files may include each other, as in OpenSSH."""
_LINE = re.compile(r"([A-Za-z0-9]+)(?:\s*=\s*|\s+|$)(.*)", re.DOTALL)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r\f")
        if line and not line.startswith("#"):
            yield number, line


def split(line: str) -> tuple[str, str] | None:
    """The keyword of a line, in lower case, and the rest; None if the line has no keyword and value."""
    found = _LINE.fullmatch(line)
    return (found[1].lower(), found[2]) if found else None


def words(rest: str) -> list[str]:
    """The words of a line. Quotes keep spaces; a `#` at the beginning of a word ends the line. Raises ValueError."""
    found: list[str] = []
    position = 0
    while position < len(rest):
        if rest[position] in " \t":
            position += 1
            continue
        if rest[position] == "#":
            break
        word, position = _word(rest, position)
        if word is None:
            raise ValueError("a quote is not closed")
        found.append(word)
    return found


def _word(text: str, position: int) -> tuple[str | None, int]:
    """The word that begins at `position` (None if its quote is not closed), and where it ends."""
    word: list[str] = []
    quote = ""
    while position < len(text):
        letter = text[position]
        following = text[position + 1 : position + 2]
        if letter == "\\" and following and following in "'\"\\":
            word.append(following)
            position += 1
        elif letter == "\\" and following == " " and not quote:
            word.append(" ")
            position += 1
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word.append(letter)
        elif letter in "\"'":
            quote = letter
        elif letter in " \t":
            break
        else:
            word.append(letter)
        position += 1
    return (None if quote else "".join(word)), position


def watched(names: Sequence[str], path: str) -> Iterator[str]:
    """For each name of an `Include`, the file or directory that changes if it names other files; "" for several."""
    for pattern in _patterns(names, path):
        if not has_magic(pattern):
            yield pattern
            continue
        directory = os.path.dirname(pattern)
        yield "" if has_magic(directory) else directory


def included(names: Sequence[str], path: str) -> Iterator[str]:
    """The files that an `Include` names. Relative names are beside the user's or the system's configuration."""
    for pattern in _patterns(names, path):
        yield from sorted(glob(pattern))


def _patterns(names: Sequence[str], path: str) -> Iterator[str]:
    base = "/etc/ssh" if path.startswith("/etc/ssh/") else os.path.expanduser("~/.ssh")
    for name in names:
        yield os.path.join(base, os.path.expanduser(name))
