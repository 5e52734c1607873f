"""The log of a supervisor, which is its standard error."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from flowlite.output import redact


def say(text: str) -> None:
    """Writes a line to the supervisor's log. A line for which the disk has no room may be lost."""
    said = redact.cleaned(text.rstrip())
    with suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}\n")
        sys.stderr.flush()
