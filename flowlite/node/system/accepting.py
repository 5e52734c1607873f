"""Accepting connections without spinning or ending when this process can hold no more of them, or of threads.

When file descriptors or memory have run out, `accept` fails and the connection stays in the kernel's queue: a poll
reports the listener as ready again at once, and a loop that only goes on takes a whole core until a descriptor is free.
"""

from __future__ import annotations

import errno
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

PAUSE = 0.1
"""Seconds until the next try, when there was no room for a connection."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_LISTENING = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


def accept(listener: socket.socket) -> tuple[socket.socket, Any] | None:
    """The next connection and its address; None if there is none now, or it broke before it was accepted.

    Waits for `PAUSE` when there is no room for a connection.

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
    """Starts a thread that serves somebody. False, after `PAUSE`, where this process can have no more threads.

    Whoever called serves others: it must turn away the one it has no thread for, and go on.
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
    """The same for a reader of an event loop, which must not wait: the reader is taken away for `PAUSE` instead.

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
