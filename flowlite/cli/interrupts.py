"""Ctrl-C, remembered: Python hides one that hits in the wrong place behind another exception, or drops it.

It is dropped where no exception can be raised: in a callback of a weak reference, of which each import has one, or in a
`__del__`. Python gives it to `sys.unraisablehook`, and the program would go on as if nobody had pressed anything. It is
raised again here, as soon as the program is out of there.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 0.02

_pressed = False
# One was dropped, and has not been raised since.
_owed = False
# The program is where one is dropped.
_deaf = False
# The latest signal has come to `_press`, so that the next one would be another.
_heard = threading.Event()


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _pressed


@contextmanager
def remembered() -> Iterator[None]:
    """Raises KeyboardInterrupt as always, and remembers it; one that Python drops is raised again."""
    global _pressed, _owed
    _pressed = _owed = False
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    hook = sys.unraisablehook

    def unraisable(told: sys.UnraisableHookArgs) -> None:
        global _owed, _deaf
        if not issubclass(told.exc_type, KeyboardInterrupt):
            hook(told)
            return
        _deaf = True
        try:
            _owed = True
            threading.Thread(target=_press_again, daemon=True).start()
        finally:
            _deaf = False

    sys.unraisablehook = unraisable
    signal.signal(signal.SIGINT, _press)
    try:
        yield
    finally:
        _owed = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
        _heard.set()


def _press(number: int, frame: FrameType | None) -> None:
    global _pressed, _owed
    _pressed = True
    _heard.set()
    if not _deaf:
        _owed = False
        signal.default_int_handler(number, frame)


def _press_again() -> None:
    while _owed:
        time.sleep(_AGAIN_SECONDS)
        main = threading.main_thread().ident
        _heard.clear()
        if _owed and main is not None:
            # A real signal, which ends whatever the main thread waits for.
            signal.pthread_kill(main, signal.SIGINT)
            _heard.wait()
