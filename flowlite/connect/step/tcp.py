"""A TCP stream from a node, carried by its mux server as one stream of the channel."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flowlite.connect.bridge import BLOCK, Bridge, wait_for_hang_up
from flowlite.connect.step.stream import Stream
from flowlite.errors import NodeUnreachable


async def open_stream(
    ask: Callable[[Mapping[str, Any]], Stream], label: str, address: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a stream from the node to an address and port, as the node resolves them.

    Raises:
        NodeUnreachable: The node does not answer.
        ConnectionRefusedError: Nothing listens there.
    """
    return await _OverMux(ask, label, address, port).open()


class _OverMux(Bridge[Stream]):
    name = "flowlite-step-tcp"

    def __init__(
        self, ask: Callable[[Mapping[str, Any]], Stream], label: str, address: str, port: int
    ) -> None:
        super().__init__()
        self._ask = ask
        self._label = f"{label}: {address}:{port}"
        self._target = {"do": "tcp", "address": address, "port": port}

    def _reach(self) -> Stream:
        stream = self._ask(self._target)
        if (first := stream.piece()) is None or first[0] != "ready":
            end = stream.end
            number, text = int(end.get("errno", errno.EIO)), str(end.get("text", "it did not open"))
            raise OSError(number, f"{self._label}: {text}")
        return stream

    def _carry_down(self, theirs: socket.socket, far: Stream) -> None:
        said_all = False
        try:
            with suppress(OSError):
                for name, block in far.pieces():
                    if name == "end":
                        # The far side has ended its output; our side may still send.
                        said_all = True
                        theirs.shutdown(socket.SHUT_WR)
                    else:
                        theirs.sendall(block)
        except NodeUnreachable as error:
            self._fail(ConnectionResetError(str(error)))
        if not said_all or "errno" in far.end:
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)

    def _carry_up(self, theirs: socket.socket, far: Stream) -> None:
        with suppress(OSError):
            while (block := theirs.recv(BLOCK)) and far.send(block):
                pass
            far.end_input()
            wait_for_hang_up(theirs)
        # Our side is closed, so output that still arrives has no reader.
        far.close()
