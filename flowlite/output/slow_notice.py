"""Tells a user why nothing is seen yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def told_if_slow(say: Callable[[str], object], text: str, seconds: float) -> Iterator[None]:
    """Says a text if the block takes longer than so many seconds."""
    timer = threading.Timer(seconds, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
