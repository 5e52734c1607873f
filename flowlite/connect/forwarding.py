"""Local TCP ports that are forwarded to ports of a node, over the provider's connection.

Each local connection becomes one stream on the node. After an outage the node is reached again on the next use
(`Connection.open_tcp`); streams that broke are not restored, so the local program has to connect again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from contextlib import suppress

from flowlite.connect.base import Connection
from flowlite.errors import ConfigError, NodeUnreachable
from flowlite.node.quick_dataclass import dataclass

BLOCK = 64 * 1024
# As seen from the node: the default address of most servers.
_THERE = "127.0.0.1"


@dataclass(frozen=True)
class Port:
    """A local port and the port of the node that it leads to. `local` is 0 for any free port."""

    local: int
    remote: int


def parse_port(text: str) -> Port:
    """Parses `6006`, or `16006:6006` for another local port. Raises ConfigError."""
    local, colon, remote = text.rpartition(":")
    numbers = [local, remote] if colon else [remote, remote]
    try:
        here, there = (int(each) if each.isascii() and each.isdecimal() else -1 for each in numbers)
    except ValueError:
        here = there = -1
    if not 0 <= here < 65536 or not 0 < there < 65536:
        raise ConfigError(
            f"{text!r} is not a port; give a number from 1 to 65535, or HERE:THERE such as 16006:6006"
        )
    return Port(here, there)


class Forwarding:
    """Listens on local ports and forwards each connection to the node. `tell` receives messages for the user."""

    def __init__(
        self, connection: Connection, ports: Sequence[Port], bind: str, tell: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._ports = ports
        self._bind = bind
        self._tell = tell
        self._told: dict[int, str] = {}
        self._servers: list[asyncio.Server] = []
        self._streams: set[asyncio.Task[None]] = set()

    async def open(self) -> list[Port]:
        """Listens on all ports. Returns them with the local ports that were bound.

        Raises:
            ConfigError: A local port cannot be bound.
            NodeUnreachable: The node does not answer.
        """
        found = []
        for port in self._ports:
            await self._say_if_closed(port)
            server = await self._listen(port)
            self._servers.append(server)
            found.append(Port(server.sockets[0].getsockname()[1], port.remote))
        return found

    async def close(self) -> None:
        """Stops listening and ends all forwarded streams."""
        for server in self._servers:
            server.close()
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def _listen(self, port: Port) -> asyncio.Server:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = asyncio.ensure_future(self._lead(port, reader, writer))
            self._streams.add(stream)
            stream.add_done_callback(self._streams.discard)

        try:
            return await asyncio.start_server(accept, self._bind, port.local)
        except OSError as error:
            another = f"give another one: {_another(port.remote)}:{port.remote}"
            reasons = {
                errno.EADDRINUSE: f"is in use; {another}",
                errno.EACCES: f"is not allowed to you; {another}",
                errno.EADDRNOTAVAIL: "cannot be had, since that is no address of this machine; give another --bind",
            }
            why = reasons.get(error.errno or 0, f"cannot be had: {error}")
            raise ConfigError(f"port {port.local} of this machine ({self._bind}) {why}") from None

    async def _say_if_closed(self, port: Port) -> None:
        with suppress(ConnectionRefusedError):
            _, writer = await self._connection.open_tcp(_THERE, port.remote)
            writer.close()
            return
        self._once(port, _closed(port))

    async def _lead(
        self, port: Port, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            try:
                there, back = await self._connection.open_tcp(_THERE, port.remote)
            except ConnectionRefusedError:
                self._once(port, _closed(port))
                return
            except (NodeUnreachable, OSError) as error:
                self._once(port, f"{error}; the next connection tries again")
                return
            self._told.pop(port.remote, None)
            try:
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
            except NodeUnreachable as error:
                self._once(port, f"a connection to port {port.remote} broke: {error}")
            except OSError:
                # One of the two programs has closed its connection or ended.
                pass
            finally:
                back.close()
        finally:
            writer.close()

    def _once(self, port: Port, text: str) -> None:
        if self._told.get(port.remote) != text:
            self._told[port.remote] = text
            self._tell(text)


def _closed(port: Port) -> str:
    return (
        f"nothing listens on port {port.remote} of the node yet (on {_THERE}); start the server in the task, or let it "
        "listen on that address. The next connection tries again"
    )


def _another(port: int) -> int:
    """A local port to suggest in place of one that is taken."""
    return port + 10_000 if port + 10_000 < 65536 else port - 10_000


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction to its end; the other may continue."""
    while block := await reader.read(BLOCK):
        writer.write(block)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
