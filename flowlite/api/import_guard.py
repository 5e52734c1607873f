"""While the command line imports a user's file, that file may define tasks, and must not start any.

`flow run FILE::FUNCTION` imports the file to find the function. What the file does at its top level happens then, too,
even for `--dry-run` and `--help`, which promise to start nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowlite.errors import ConfigError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# One for the whole process: a file may start tasks from threads of its own.
_importing = 0


class StartedByImport(ConfigError):
    """A file does at its top level, while it is imported, what costs money or deletes something."""


@contextmanager
def users_file() -> Iterator[None]:
    """Refuses what costs money or deletes something, in this process, while the block runs."""
    global _importing
    _importing += 1
    try:
        yield
    finally:
        _importing -= 1


def refuse(what: str) -> None:
    """Raises StartedByImport, with the user's own line, while the command line imports a file.

    Args:
        what: What the file does, as in "starts a task".
    """
    if not _importing:
        return
    raise StartedByImport(
        f"{_users_line()} {what} at the top level of the file, and so whenever the file is imported; put it "
        "under: if __name__ == '__main__':"
    )


def _users_line() -> str:
    """File and line of the innermost caller outside of flowlite."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
