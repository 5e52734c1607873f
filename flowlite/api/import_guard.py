"""Stops a user's file from starting tasks while the command line imports it.

`flow run FILE::FUNCTION` imports the file to find the function. This runs the top level of the file, even for
`--dry-run` and `--help`, which promise to start nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowlite.errors import ConfigError

# Between a user's line and this module there are only frames of flowlite and of the context managers that it enters.
_NOT_THE_USERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    contextmanager.__code__.co_filename,
)
# Counts for the whole process, since a file may start tasks from its own threads.
_importing = 0


class StartedByImport(ConfigError):
    """The top level of an imported file does something that costs money or deletes data."""


@contextmanager
def users_file() -> Iterator[None]:
    """While the block runs, `refuse` raises in this process."""
    global _importing
    _importing += 1
    try:
        yield
    finally:
        _importing -= 1


def refuse(what: str) -> None:
    """Raises StartedByImport, naming the user's own line and "starts a task" or the like, while a file is imported."""
    if not _importing:
        return
    file, line = users_place()
    raise StartedByImport(
        f"{file}:{line} {what} at the top level of the file, and so whenever the file is imported; put it "
        "under: if __name__ == '__main__':"
    )


def users_place() -> tuple[str, int]:
    """File and line of the user's innermost call into flowlite."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
