"""Probes TCP ports of many machines in parallel, in one thread."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import closing

AGAIN_SECONDS = 0.15
"""A machine that comes up meanwhile has missed the first request, which the kernel repeats only after a second."""
_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


_MOST_AT_ONCE = 2
"""Connection attempts per address: the first one, for distant machines, and the latest."""


def answering(addresses: Sequence[tuple[str, int]], seconds: float) -> list[bool]:
    """For each address and port, whether it accepts a connection within `seconds`."""
    until = time.monotonic() + seconds
    with closing(_ConnectionAttempts(addresses)) as knocks:
        while not all(knocks.found) and time.monotonic() < until:
            knocks.knock()
            knocks.listen(min(until, time.monotonic() + AGAIN_SECONDS))
        return knocks.found


class _ConnectionAttempts:
    """The connection attempts in progress for some addresses."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self.found = [False] * len(addresses)
        self._addresses = addresses
        self._under_way: list[list[socket.socket]] = [[] for _ in addresses]
        self._waiting = selectors.DefaultSelector()

    def knock(self) -> None:
        """Starts another attempt for each address that has not answered."""
        for index, (address, port) in enumerate(self._addresses):
            if self.found[index] or (sock := _begin(address, port)) is None:
                continue
            under_way = self._under_way[index]
            if len(under_way) == _MOST_AT_ONCE:
                self._give_up(index, under_way[-1])
            under_way.append(sock)
            self._waiting.register(sock, selectors.EVENT_WRITE, index)

    def listen(self, until: float) -> None:
        """Collects answers until the deadline, or until all have answered."""
        while not all(self.found) and (left := until - time.monotonic()) > 0:
            for entry, _ in self._waiting.select(left):
                sock, index = entry.fileobj, entry.data
                assert isinstance(sock, socket.socket)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    self.found[index] = True
                self._give_up(index, sock)

    def close(self) -> None:
        """Closes all attempts in progress."""
        for index, under_way in enumerate(self._under_way):
            for sock in list(under_way):
                self._give_up(index, sock)
        self._waiting.close()

    def _give_up(self, index: int, sock: socket.socket) -> None:
        self._waiting.unregister(sock)
        self._under_way[index].remove(sock)
        sock.close()


def _begin(address: str, port: int) -> socket.socket | None:
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
