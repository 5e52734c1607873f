"""The log of a supervisor, which is its standard error."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from flowlite.output import redact


def say(text: str) -> None:
    """Writes a line to the supervisor's log. A line for which the disk has no room may be lost."""
    said = redact.cleaned(text.rstrip())
    with suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}\n")
        sys.stderr.flush()


def write_to(path: Path) -> None:
    """Redirects the output of this process to a file."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number in (1, 2):
        os.dup2(opened, number)
    os.close(opened)
