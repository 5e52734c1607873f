"""Whether something answers on ports of many machines, tried all at a time in one thread."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence

_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


def answering(addresses: Sequence[tuple[str, int]], seconds: float) -> list[bool]:
    """For each address and port whether it takes a connection within so many seconds."""
    found = [False] * len(addresses)
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as waiting:
        for index, (address, port) in enumerate(addresses):
            if sock := _knock(address, port):
                waiting.register(sock, selectors.EVENT_WRITE, index)
        while waiting.get_map() and (left := until - time.monotonic()) > 0:
            for entry, _ in waiting.select(left):
                answered = entry.fileobj
                assert isinstance(answered, socket.socket)
                found[entry.data] = answered.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                waiting.unregister(answered)
                answered.close()
        for entry in list(waiting.get_map().values()):
            assert isinstance(entry.fileobj, socket.socket)
            entry.fileobj.close()
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
