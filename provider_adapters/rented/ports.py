"""Whether something answers on ports of many machines, tried all at a time in one thread."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import closing

AGAIN_SECONDS = 0.15
"""A machine that comes up meanwhile has not seen what was sent before, which is repeated after a second only."""
_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


_MOST_AT_ONCE = 2
"""Of each: the first, for a machine that is far away, and the latest."""


def answering(addresses: Sequence[tuple[str, int]], seconds: float) -> list[bool]:
    """For each address and port whether it takes a connection within so many seconds."""
    until = time.monotonic() + seconds
    with closing(_Knocks(addresses)) as knocks:
        while not all(knocks.found) and time.monotonic() < until:
            knocks.knock()
            knocks.listen(min(until, time.monotonic() + AGAIN_SECONDS))
        return knocks.found


class _Knocks:
    """The connections that are under way to some addresses."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self.found = [False] * len(addresses)
        self._addresses = addresses
        self._under_way: list[list[socket.socket]] = [[] for _ in addresses]
        self._waiting = selectors.DefaultSelector()

    def knock(self) -> None:
        """Try, once more, whoever has not answered."""
        for index, (address, port) in enumerate(self._addresses):
            if self.found[index] or (sock := _begin(address, port)) is None:
                continue
            under_way = self._under_way[index]
            if len(under_way) == _MOST_AT_ONCE:
                self._give_up(index, under_way[-1])
            under_way.append(sock)
            self._waiting.register(sock, selectors.EVENT_WRITE, index)

    def listen(self, until: float) -> None:
        """Take answers until then, or until all have come."""
        while not all(self.found) and (left := until - time.monotonic()) > 0:
            for entry, _ in self._waiting.select(left):
                sock, index = entry.fileobj, entry.data
                assert isinstance(sock, socket.socket)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    self.found[index] = True
                self._give_up(index, sock)

    def close(self) -> None:
        """Give up all that are under way."""
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
