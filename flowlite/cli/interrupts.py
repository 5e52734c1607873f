"""Makes sure that a Ctrl-C is not lost: Python may hide a KeyboardInterrupt behind another exception, or drop it.

Python drops it where no exception can be raised: in a callback of a weak reference, which each import has, or in a
`__del__`. It passes the exception to `sys.unraisablehook`, and the program would continue. This module sends the signal
again once the program has left that code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_AGAIN_SECONDS = 0.02

_pressed = False
# Whether a KeyboardInterrupt was dropped and has not been raised since.
_owed = False
# Whether the hook is running, where another KeyboardInterrupt would be dropped, too.
_deaf = False
# Set when the signal that was sent last has reached `_press`.
_heard = threading.Event()


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _pressed


@contextmanager
def remembered() -> Iterator[None]:
    """While the block runs, records each KeyboardInterrupt, and raises those again that Python drops."""
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


@contextmanager
def last_words(words: Callable[[], str]) -> Iterator[None]:
    """While the block runs, SIGTERM ends the command as ever, but first what the function returns is written.

    `timeout` and systems for continuous integration send it. The tasks that the command has started keep running.
    """
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() == process:
            # Not by `sys.stderr`, which may be in the middle of a write.
            with suppress(OSError):
                os.write(2, words().encode(errors="replace"))
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine in an event loop, where Ctrl-C cancels it at its next `await`. Raises KeyboardInterrupt then.

    An exception in between could hit the event loop itself, which would lose the step of a task that it was about to
    run, and wait for that task without end. asyncio prevents this only where Python's own handler is in place.
    """
    # Imported here: it takes long, and most commands need no event loop.
    import asyncio

    global _pressed
    before = signal.getsignal(signal.SIGINT)
    if before is _press:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(main)
    except KeyboardInterrupt:
        _pressed = True
        raise
    finally:
        if before is _press:
            signal.signal(signal.SIGINT, _press)


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
            # A real signal interrupts blocking system calls of the main thread.
            signal.pthread_kill(main, signal.SIGINT)
            _heard.wait()
