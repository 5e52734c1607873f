"""A TCP stream through a host, carried by a channel of its transport."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from flowlite.connect.bridge import BLOCK, Bridge, wait_for_hang_up
from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.link import Link


async def open_stream(
    link: Link, address: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a stream from the host to an address and port, as the host resolves them.

    Raises:
        NodeUnreachable: The host does not answer, or forbids it.
        ConnectionRefusedError: Nothing listens there.
    """
    return await _OverChannel(link, address, port).open()


class _OverChannel(Bridge[Any]):
    name = "flowlite-ssh-tcp"

    def __init__(self, link: Link, address: str, port: int) -> None:
        super().__init__()
        self._link = link
        self._to = (address, port)

    def _reach(self) -> Any:
        return self._link.direct(*self._to)

    def _carry_down(self, theirs: socket.socket, far: Any) -> None:
        with suppress(OSError):
            while block := far.recv(BLOCK):
                theirs.sendall(block)
        if far.eof_received and not far.closed:
            # The far side has ended its output; our side may still send.
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_WR)
            return
        transport = far.get_transport()
        if not transport.is_active():
            self._fail(ConnectionResetError(str(self._link.lost(transport))))
        with suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)

    def _carry_up(self, theirs: socket.socket, far: Any) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            while block := theirs.recv(BLOCK):
                far.sendall(block)
            far.shutdown_write()
            wait_for_hang_up(theirs)
        # Our side is closed, so output that still arrives has no reader.
        far.close()
