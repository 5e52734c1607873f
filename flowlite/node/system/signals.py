"""Delivers this process's signals as bytes in a pipe."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def watch_signals(wake_writer: int, numbers: Iterable[int]) -> None:
    """Writes signals as bytes to a pipe, which a poll loop reads."""
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
