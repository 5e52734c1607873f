"""Logs requests to clouds on standard error, with `flow --debug …` or FLOW_DEBUG=1.

Supervisors inherit the variable, and write to their own log. There is one line for each call: what was called, the
status of the answer, how long it took, and the cloud's id of the request. Headers and bodies are not shown.
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
    """Turns the log on, in this process and in processes that it starts."""
    os.environ[VARIABLE] = "1"
    log = logging.getLogger("flowlite")
    if any(isinstance(handler.formatter, _Masked) for handler in log.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Masked(_FORMAT, datefmt="%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


def turn_on_if_asked() -> None:
    """Turns the log on if FLOW_DEBUG is set."""
    if os.environ.get(VARIABLE, "") not in ("", "0"):
        turn_on()
