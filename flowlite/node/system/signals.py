"""Names of signals, and the delivery of this process's signals as bytes in a pipe."""

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


def signal_name(number: int) -> str:
    """Returns the name of a signal: SIGKILL for 9, `signal 42` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
