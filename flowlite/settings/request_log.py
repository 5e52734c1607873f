"""What is said to clouds, on standard error, for whoever asks for it: `flow --debug …`, or FLOW_DEBUG=1.

Supervisors inherit the variable, and say it in their own log. One line for each call: what was called, how it was
answered, how long that took, and the id by which the cloud knows the call. No header and no body is shown.
"""

from __future__ import annotations

import logging
import os
import sys

from flowlite import terminal
from flowlite.output import redact

VARIABLE = "FLOW_DEBUG"
_FORMAT = "%(asctime)s.%(msecs)03d %(name)s: %(message)s"


class _Masked(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return terminal.plain(redact.cleaned(super().format(record)))


def turn_on() -> None:
    """From now on, and in what is started from here."""
    os.environ[VARIABLE] = "1"
    log = logging.getLogger("flowlite")
    if any(isinstance(handler.formatter, _Masked) for handler in log.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Masked(_FORMAT, datefmt="%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


def turn_on_if_asked() -> None:
    """If the variable says so."""
    if os.environ.get(VARIABLE, "") not in ("", "0"):
        turn_on()
