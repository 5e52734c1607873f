"""Whether something answers on ports of many machines, tried all at a time in one thread."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence

AGAIN_SECONDS = 0.15
"""A machine that comes up meanwhile has not seen what was sent before, which is repeated after a second only."""
_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


def answering(addresses: Sequence[tuple[str, int]], seconds: float) -> list[bool]:
    """For each address and port whether it takes a connection within so many seconds."""
    found = [False] * len(addresses)
    # Of those that are under way, the first for machines that are far away, and the latest.
    first: dict[int, socket.socket] = {}
    latest: dict[int, socket.socket] = {}
    now = time.monotonic()
    until, again = now + seconds, now
    with selectors.DefaultSelector() as waiting:
        while not all(found) and now < until:
            if now >= again:
                again = now + AGAIN_SECONDS
                for index, (address, port) in enumerate(addresses):
                    if not found[index] and (sock := _knock(address, port)):
                        if index in latest:
                            _give_up(waiting, latest.pop(index))
                        (latest if index in first else first)[index] = sock
                        waiting.register(sock, selectors.EVENT_WRITE, index)
            for entry, _ in waiting.select(max(0.0, min(until, again) - now)):
                answered = entry.fileobj
                assert isinstance(answered, socket.socket)
                index = entry.data
                found[index] = found[index] or not answered.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ERROR
                )
                (latest if latest.get(index) is answered else first).pop(index)
                _give_up(waiting, answered)
            now = time.monotonic()
        for sock in (*first.values(), *latest.values()):
            _give_up(waiting, sock)
    return found


def _knock(address: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        if sock.connect_ex((address, port)) in _UNDER_WAY:
            return sock
    except OSError:
        pass
    sock.close()
    return None


def _give_up(waiting: selectors.BaseSelector, sock: socket.socket) -> None:
    waiting.unregister(sock)
    sock.close()
