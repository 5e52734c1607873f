"""Which files are never sent: caches, virtual environments, and files that an ignore file names.

`.flowignore` has one pattern per line, as `.gitignore`. A pattern without a slash matches the name of a file or a
directory; any other matches its path below the directory of the ignore file, in which `**/` stands for any directories,
and `*` for a part of a name. A matched directory is left out with everything in it. The last pattern that matches
decides, and one that begins with `!` keeps what it matches.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from flowlite.errors import BundleError
from flowlite.node.system import atomic_files

IGNORE_FILE = ".flowignore"
# The last two have the outputs of earlier tasks, and what an interrupted copy left.
_SKIPPED = frozenset(
    {"__pycache__", "node_modules", "site-packages", "flow-outputs", ".flow-incoming"}
)
_MOST_BYTES = 1 << 20
# conda's environments (`conda create --prefix ./env`) have no `pyvenv.cfg`.
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", os.path.join("conda-meta", "history"))
_Match = Callable[[str], object]
_SKIPPED_SUFFIXES = (".pyc", ".pyo", ".egg-info")
_PARTS = re.compile(
    r"(?P<directories>(?:^|(?<=/))\*\*/)|(?P<all_below>(?<=/)\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|\[(?P<range>[!^]?.[^]]*)\]|\\?(?P<literal>.)",
    re.DOTALL,
)


def read_patterns(root: str, name: str = IGNORE_FILE) -> list[str]:
    """The patterns of an ignore file; empty if the file does not exist.

    Raises:
        BundleError: It cannot be read. Files that it names would be sent.
    """
    path = Path(root, name)
    try:
        with io.BufferedReader(atomic_files.open_regular(path)) as file:
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read, so what it leaves out is not known: {error.strerror}"
        ) from error
    if len(text) > _MOST_BYTES:
        raise BundleError(f"{path} is longer than {_MOST_BYTES:,} bytes")
    # Some editors begin a file with a byte order mark.
    lines = text.decode("utf-8-sig", "surrogateescape").splitlines()
    return [line.strip() for line in lines if line.strip() and line[0] != "#"]


def matches(below: str, patterns: Sequence[str]) -> bool:
    """Whether patterns leave out a path or one of its parent directories. The path of a directory ends with a slash."""
    if not patterns:
        return False
    *above, last = below.rstrip(os.sep).split(os.sep)
    directories = [*above, last] if below.endswith(os.sep) else above
    return any(
        _is_named(directories[:count], patterns, is_directory=True)
        for count in range(1, len(directories) + 1)
    ) or (directories is above and _is_named([*above, last], patterns, is_directory=False))


def _is_named(steps: Sequence[str], patterns: Sequence[str], *, is_directory: bool) -> bool:
    path = os.sep.join(steps)
    for keeps, is_path, is_name in _expressions(tuple(patterns), is_directory):
        if is_path(path) or is_name(steps[-1]):
            return not keeps
    return False


@functools.lru_cache(maxsize=16)
def _expressions(
    patterns: tuple[str, ...], is_directory: bool
) -> tuple[tuple[bool, _Match, _Match], ...]:
    """The patterns, the last ones first: whether they keep what they match, and expressions for paths and for names.

    Patterns that follow one another are one expression: a project has many files, and each is compared with all.
    """
    found = []
    for keeps, group in itertools.groupby(patterns, lambda each: each.startswith("!")):
        words = [each.removeprefix("!") for each in group]
        if keeps and not is_directory:
            # `!*/` keeps directories only. A pattern that leaves out, as `data/`, may also name a file or a link.
            words = [each for each in words if not each.endswith("/")]
        words = [each.rstrip("/") for each in words]
        paths = [each.removeprefix("/") for each in words if "/" in each]
        names = [each for each in words if "/" not in each]
        found.append((keeps, _expression(paths), _expression(names)))
    return tuple(reversed(found))


def _expression(patterns: Sequence[str]) -> _Match:
    return re.compile("|".join(map(_translated, patterns)) or "(?!)", re.DOTALL).fullmatch


def _translated(pattern: str) -> str:
    """The regular expression of one pattern of git."""
    found, at = "", 0
    while at < len(pattern):
        part = _PARTS.match(pattern, at)
        assert part is not None
        found += _translated_part(part)
        at = part.end()
    return found


def _translated_part(part: re.Match[str]) -> str:
    if part["directories"]:
        return "(?:.+/)?"
    if part["all_below"]:
        return ".+"
    if part["stars"]:
        return "[^/]*"
    if part["one"]:
        return "[^/]"
    if part["range"]:
        return _one_of(part["range"])
    return re.escape(part["literal"])


def _one_of(text: str) -> str:
    """The expression for a character of a range, such as `a-z`, or for one that is not in it (`!a-z`)."""
    inverted = text[0] in "!^"
    characters = "".join(each if each == "-" else re.escape(each) for each in text[inverted:])
    expression = f"(?!/)[{'^' if inverted else ''}{characters}]"
    try:
        re.compile(expression)
    except re.error:
        # A range that ends before it begins has no character.
        return "(?!)"
    return expression


def is_generated(name: str) -> bool:
    """Whether a file or directory of this name is generated from others."""
    return name in _SKIPPED or name.endswith(_SKIPPED_SUFFIXES)


def is_environment(directory: str) -> bool:
    """Whether this directory is a virtual environment, or one of conda."""
    return any(os.path.exists(os.path.join(directory, mark)) for mark in _MARKS_OF_ENVIRONMENTS)


def is_environment_file(name: str) -> bool:
    """Whether a file of this name has variables for programs, which may be secrets."""
    return name == ".env" or name.startswith(".env.")


def is_skipped_directory(above: str, name: str) -> bool:
    """Whether a directory is left out with all its contents, even if no ignore file names it."""
    return name.startswith(".") or is_generated(name) or is_environment(os.path.join(above, name))
