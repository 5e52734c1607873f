"""What of a directory never travels: caches, virtual environments, and what an ignore file names.

A pattern is a shell pattern, one on a line of `.flowignore`. It names a file or a directory, by its name or by its path
below the directory of the ignore file; with a directory goes all that is in it.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path

IGNORE_FILE = ".flowignore"
# The last is where outputs of earlier tasks lie.
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "flow-outputs"})
_SKIPPED_SUFFIXES = (".pyc", ".pyo", ".egg-info")


def read_patterns(root: str, name: str = IGNORE_FILE) -> list[str]:
    """The patterns of an ignore file; none where there is no such file."""
    try:
        lines = Path(root, name).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    return [line.strip().strip("/") for line in lines if line.strip() and line[0] not in "#!"]


def matches(below: str, patterns: Sequence[str]) -> bool:
    """Whether a path, or a directory on the way to it, is named by a pattern."""
    steps = below.split(os.sep)
    for pattern in patterns:
        for count in range(1, len(steps) + 1):
            if fnmatch.fnmatch(os.sep.join(steps[:count]), pattern) or fnmatch.fnmatch(
                steps[count - 1], pattern
            ):
                return True
    return False


def is_generated(name: str) -> bool:
    """Whether a file or directory of this name can be made anew from others."""
    return name in _SKIPPED or name.endswith(_SKIPPED_SUFFIXES)


def is_environment(directory: str) -> bool:
    """Whether this directory is a virtual environment."""
    return os.path.exists(os.path.join(directory, "pyvenv.cfg"))


def is_skipped_directory(directory: str, name: str, below: str, patterns: Sequence[str]) -> bool:
    """Whether a directory is left out with all that is in it.

    Args:
        directory: The directory that it lies in.
        name: Its name.
        below: Its path below the directory of the ignore file.
        patterns: Those of the ignore file.
    """
    return (
        name.startswith(".")
        or is_generated(name)
        or is_environment(os.path.join(directory, name))
        or matches(below, patterns)
    )
