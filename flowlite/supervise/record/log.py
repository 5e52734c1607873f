"""The log of a supervisor, which is its standard error."""

from __future__ import annotations

import sys
import time

from flowlite.output import redact


def say(text: str) -> None:
    """Writes a line to the supervisor's log."""
    said = redact.cleaned(text.rstrip())
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}\n")
    sys.stderr.flush()
