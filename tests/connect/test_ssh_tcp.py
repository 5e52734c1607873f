"""A TCP stream through a host: back-pressure, half-closed ends, breaks, and nothing left over."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from flowlite.connect.bridge import Bridge, wait_for_hang_up
from flowlite.connect.ssh import transport as ssh_transport
from flowlite.connect.ssh.connection import SshConnection
from flowlite.errors import NodeUnreachable
from tests.connect.sshd import Sshd
from tests.helpers import eventually

Servers = Callable[..., Sshd]
Connect = Callable[..., SshConnection]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """A server on a free port. What it has accepted is closed with it."""
    accepted: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # A connection that it has just accepted takes a few turns of the loop to come to its handler.
        for _ in range(10):
            await asyncio.sleep(0)
        for writer in accepted:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


async def soon(probe: Callable[[], bool]) -> None:
    """Waits for something without blocking the loop."""
    async with asyncio.timeout(60):
        while not probe():
            await asyncio.sleep(0.01)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(65536):
        writer.write(block)
        await writer.drain()
    writer.close()


def bridges() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("flowlite-ssh-tcp")
    ]


def test_nothing_is_left(connection: SshConnection) -> None:
    connection.run(["true"])
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        async with listening(echo) as port:
            for number in range(20):
                reader, writer = await connection.open_tcp("127.0.0.1", port)
                writer.write(b"ping")
                assert await reader.readexactly(4) == b"ping"
                if number % 2:
                    writer.write_eof()
                    assert await reader.read() == b""
                writer.close()
                await writer.wait_closed()
            await soon(lambda: bridges() == [])

    asyncio.run(scenario())
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    transport = connection._link.transport()
    eventually(lambda: len(transport._channels) == 0, what="all channels closed")  # type: ignore[attr-defined]


def test_closing_while_the_far_side_talks(connection: SshConnection) -> None:
    gone = threading.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except OSError:
            gone.set()

    async def scenario() -> None:
        async with listening(talk) as port:
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            await reader.readexactly(1_000_000)
            writer.close()
            await soon(lambda: gone.is_set() and bridges() == [])

    asyncio.run(scenario())


def test_closing_while_the_far_side_is_quiet(connection: SshConnection) -> None:
    ended = threading.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Says nothing, and hears that we are gone.
        assert await reader.read() == b""
        ended.set()

    async def scenario() -> None:
        async with listening(wait) as port:
            _, writer = await connection.open_tcp("127.0.0.1", port)
            writer.close()
            await soon(lambda: ended.is_set() and bridges() == [])

    asyncio.run(scenario())


def test_a_slow_reader_holds_the_writer_back(connection: SshConnection) -> None:
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except OSError:
            pass

    async def scenario() -> None:
        async with listening(talk) as port:
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.5)
            # It has come to a stop: what is under way fills the windows and buffers, and no more.
            assert 0 < sent < 8 * ssh_transport.WINDOW
            await reader.readexactly(2 * sent)
            writer.close()
            await soon(lambda: bridges() == [])

    asyncio.run(scenario())


def test_a_break(servers: Servers, connect: Connect) -> None:
    server = servers()
    connection = connect(server)

    async def scenario() -> None:
        async with listening(echo) as port:
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            writer.write(b"ping")
            assert await reader.readexactly(4) == b"ping"
            server.cut()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
            await soon(lambda: bridges() == [])
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            writer.write(b"pong")
            assert await reader.readexactly(4) == b"pong"
            writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("option", "value"), [("AllowTcpForwarding", "no"), ("DisableForwarding", "yes")]
)
def test_a_host_that_forbids_it(
    servers: Servers, connect: Connect, option: str, value: str
) -> None:
    connection = connect(servers(**{option: value}))

    async def scenario() -> None:
        with pytest.raises(NodeUnreachable, match=option):
            await connection.open_tcp("127.0.0.1", 22)

    asyncio.run(scenario())


def test_giving_up_before_it_is_open(connection: SshConnection) -> None:
    connection.run(["true"])
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        async with listening(echo) as port:
            for _ in range(10):
                opening = asyncio.ensure_future(connection.open_tcp("127.0.0.1", port))
                await asyncio.sleep(0)
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
            await soon(lambda: bridges() == [])

    asyncio.run(scenario())
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


@pytest.mark.parametrize("then", ["it goes on", "it is closed"])
def test_giving_up_in_the_moment_when_it_is_open(then: str) -> None:
    """Our end is there, and nobody will take it."""
    reached, passed_on = threading.Event(), threading.Event()

    class Opened(Bridge[socket.socket]):
        name = "flowlite-ssh-tcp-opened"

        def _reach(self) -> socket.socket:
            reached.wait(90)
            return socket.socketpair()[0]

        def _tell(self, outcome: socket.socket | Exception) -> bool:
            told = super()._tell(outcome)
            passed_on.set()
            return told

        def _carry_down(self, theirs: socket.socket, far: socket.socket) -> None:
            wait_for_hang_up(theirs)

        def _carry_up(self, theirs: socket.socket, far: socket.socket) -> None:
            wait_for_hang_up(theirs)

    async def scenario() -> None:
        opening = asyncio.ensure_future(Opened().open())
        await asyncio.sleep(0)
        # The loop turns only when the other thread has handed our end to it.
        reached.set()
        assert passed_on.wait(90)
        if then == "it is closed":
            opening.cancel()
            return
        asyncio.get_running_loop().call_soon(opening.cancel)
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(scenario())
    eventually(lambda: bridges() == [], what="the threads end, since our end is closed")


def test_without_a_free_descriptor_it_fails_and_opens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Opened(Bridge[socket.socket]):
        name = "flowlite-ssh-tcp-opened"

        def _reach(self) -> socket.socket:
            raise AssertionError("the far side is opened")

        def _carry_down(self, theirs: socket.socket, far: socket.socket) -> None: ...

        def _carry_up(self, theirs: socket.socket, far: socket.socket) -> None: ...

    def lack() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario() -> None:
        monkeypatch.setattr(socket, "socketpair", lack)
        with pytest.raises(OSError, match="Too many open files"):
            await asyncio.wait_for(Opened().open(), 60)

    asyncio.run(scenario())


def test_a_far_side_that_cannot_be_opened_leaves_no_descriptor() -> None:
    class Refused(Bridge[socket.socket]):
        name = "flowlite-ssh-tcp-opened"

        def _reach(self) -> socket.socket:
            raise ConnectionRefusedError

        def _carry_down(self, theirs: socket.socket, far: socket.socket) -> None: ...

        def _carry_up(self, theirs: socket.socket, far: socket.socket) -> None: ...

    async def scenario() -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            with pytest.raises(ConnectionRefusedError):
                await Refused().open()
        assert len(os.listdir("/proc/self/fd")) <= descriptors

    asyncio.run(scenario())


def test_a_loop_that_is_gone(connection: SshConnection) -> None:
    async def scenario() -> None:
        async with listening(echo) as port:
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            writer.write(b"ping")
            assert await reader.readexactly(4) == b"ping"

    # It ends with the stream open.
    asyncio.run(scenario())
    import gc

    gc.collect()
    eventually(lambda: bridges() == [], what="the threads end with the stream")
