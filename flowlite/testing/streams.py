"""Output that is streamed while a command runs, and TCP, over a connection to a node."""

from __future__ import annotations

import asyncio
import os

import pytest

from flowlite.connect.base import Connection
from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.testing.launching import settings_of
from flowlite.testing.reaching import Reached
from flowlite.testing.subject import ProviderUnderTest

BLOCK = os.urandom(1 << 20)
# An echo server, which serves a connection until the client has shut down its side.
_ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    peer, _ = server.accept()
    while block := peer.recv(65536):
        peer.sendall(block)
    peer.close()
"""


class StreamTests(Reached):
    """Tests of `follow`, `stream` and `open_tcp`."""

    def test_output_is_handed_over_as_it_comes(self, connection: Connection, place: str) -> None:
        came: list[tuple[str, bytes]] = []
        script = f"echo one; until [ -e {place}/go ]; do sleep 0.02; done; echo two >&2; exit 5"

        def take(stream: str, data: bytes) -> None:
            came.append((stream, data))
            if b"one" in data:
                connection.run(["touch", f"{place}/go"])

        if not _follows(connection):
            connection.run(["touch", f"{place}/go"])
        assert connection.follow(["sh", "-c", script], take) == 5
        for stream, said in (("out", b"one\n"), ("err", b"two\n")):
            assert b"".join(data for name, data in came if name == stream) == said

    def test_a_stream_is_our_own_output_and_its_status_ours(
        self, connection: Connection, capfd: pytest.CaptureFixture[str]
    ) -> None:
        argv = ["sh", "-c", "echo out; echo err >&2; exit 7"]
        assert connection.stream(argv, terminal=False) == 7
        shown = capfd.readouterr()
        assert (shown.out, shown.err) == ("out\n", "err\n")
        assert connection.stream(["sh", "-c", "kill -9 $$"], terminal=False) == 137

    def test_a_tcp_stream_carries_both_ways_and_its_end(
        self, subject: ProviderUnderTest, node: Instance, connection: Connection, place: str
    ) -> None:
        port = _serve(subject, node, connection, place)

        async def talk() -> bytes:
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            sending = asyncio.create_task(_send(writer))
            got = await reader.read(-1)
            await sending
            writer.close()
            return got

        assert asyncio.run(asyncio.wait_for(talk(), subject.patience)) == BLOCK * 4

    def test_tcp_streams_do_not_wait_for_each_other(
        self, subject: ProviderUnderTest, node: Instance, connection: Connection, place: str
    ) -> None:
        ports = [_serve(subject, node, connection, f"{place}/{number}") for number in range(3)]

        async def talk() -> list[bytes]:
            streams = [await connection.open_tcp("127.0.0.1", port) for port in ports]
            answers = []
            for number, (reader, writer) in reversed(list(enumerate(streams))):
                writer.write(f"hello {number}".encode())
                answers.append(await reader.readexactly(7))
            for _, writer in streams:
                writer.close()
            return answers

        answers = asyncio.run(asyncio.wait_for(talk(), subject.patience))
        assert answers == [b"hello 2", b"hello 1", b"hello 0"]

    def test_a_port_on_which_nobody_listens(
        self, subject: ProviderUnderTest, connection: Connection
    ) -> None:
        async def talk() -> bytes:
            reader, writer = await connection.open_tcp("127.0.0.1", 1)
            try:
                return await reader.read(1)
            finally:
                writer.close()

        with pytest.raises((OSError, ProviderError)):
            asyncio.run(asyncio.wait_for(talk(), subject.patience))


async def _send(writer: asyncio.StreamWriter) -> None:
    for _ in range(4):
        writer.write(BLOCK)
        await writer.drain()
    writer.write_eof()


def _follows(connection: Connection) -> bool:
    """Whether the connection delivers output before the command ends, which is optional."""
    return type(connection).follow is not Connection.follow


def _serve(subject: ProviderUnderTest, node: Instance, connection: Connection, place: str) -> int:
    """Starts the echo server and returns its port. The server ends with the node."""
    settings = settings_of(subject, node)
    connection.put(b"", f"{place}/port")
    connection.start(
        [settings.python, "-c", _ECHO], log=f"{place}/port", environment=settings.environment
    )

    def port() -> int:
        said = connection.run(["cat", f"{place}/port"]).stdout
        return int(said) if said.endswith(b"\n") else 0

    return subject.eventually(port, "the server listens")
