"""Ctrl-C, remembered: Python hides one that hits in the wrong place behind another exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_pressed = False


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _pressed


@contextmanager
def remembered() -> Iterator[None]:
    """Raises KeyboardInterrupt as always, and remembers it."""
    global _pressed
    _pressed = False
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _press(number: int, frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    signal.default_int_handler(number, frame)
