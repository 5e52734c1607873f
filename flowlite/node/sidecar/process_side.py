"""The sidecar's own side: what every process does that ends with the agent's pipe (`agent_side.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading

from ..system import atomic_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_reporting = threading.Lock()


class SidecarFailed(OSError):
    """A sidecar did not start, or cannot do its work; the text is for people.

    Attributes:
        passing: Whether a retry may succeed.
    """

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


def report(event: str, **body: Any) -> None:
    """Reports an event to the agent, as one line of JSON. Any thread may report."""
    line = json.dumps({"event": event, **body}).encode() + b"\n"
    with _reporting, contextlib.suppress(OSError):
        atomic_files.write(1, line)


def wait_for_agent() -> None:
    """Returns when the agent has closed the pipe, or is gone."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            continue


def ending() -> threading.Event:
    """Returns an event that is set once the agent has closed the pipe, or a signal tells this process to end."""
    over = threading.Event()

    def wait() -> None:
        wait_for_agent()
        over.set()

    for number in _ENDINGS:
        signal.signal(number, lambda *_: over.set())
    threading.Thread(target=wait, daemon=True).start()
    return over


def ignore_signals() -> None:
    """Lets only the agent's pipe end this process, so that it always finishes what it has to undo."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)
