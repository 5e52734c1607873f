"""Accepts connections without a busy loop when this process runs out of descriptors, memory or threads.

When file descriptors or memory have run out, `accept` fails and the connection stays in the backlog. A poll reports
the listener as ready again at once, so a plain loop would take a whole core until a descriptor is free.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

PAUSE = 0.1
"""Seconds until the next try after resources ran out."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_LISTENING = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


def allow_descriptors(needed: int = sys.maxsize, most: int = sys.maxsize) -> None:
    """Raises the soft limit of open descriptors, often 1,024, as far as the hard one allows.

    Args:
        needed: It is left alone if it is no lower than this.
        most: What it is raised to at most. Processes that are started afterwards inherit it, and some take long with
            a limit of millions.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(most, hard)
    if soft < min(needed, wanted):
        # Without it, connections fail with a reason that says so.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def accept(listener: socket.socket) -> tuple[socket.socket, Any] | None:
    """Returns the next connection and its address; None if there is none, or it broke before it was accepted.

    Waits for `PAUSE` if resources have run out.

    Raises:
        OSError: The listener does not listen any more.
    """
    try:
        return listener.accept()
    except OSError as error:
        if error.errno in _NOT_LISTENING:
            raise
        if error.errno in _NO_ROOM:
            time.sleep(PAUSE)
        return None


def start_thread(target: Callable[..., None], *arguments: Any) -> bool:
    """Starts a thread that serves a connection. False, after `PAUSE`, if this process can have no more threads.

    The caller must then reject the connection and continue to serve others.
    """
    try:
        threading.Thread(target=target, args=arguments, daemon=True).start()
    except RuntimeError:
        time.sleep(PAUSE)
        return False
    return True


def accept_in_loop(
    loop: asyncio.AbstractEventLoop, listener: socket.socket, acceptable: Callable[[], None]
) -> tuple[socket.socket, Any] | None:
    """`accept` for a reader of an event loop, which must not wait: the reader is removed for `PAUSE` instead.

    Args:
        acceptable: The callback that was given to `add_reader` for this listener.
    """

    def resume() -> None:
        if listener.fileno() >= 0:
            loop.add_reader(listener, acceptable)

    try:
        return listener.accept()
    except OSError as error:
        if error.errno in _NO_ROOM:
            loop.remove_reader(listener)
            loop.call_later(PAUSE, resume)
        return None
