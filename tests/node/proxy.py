"""A TCP proxy that a test can tear: breaks connections at random, stalls them, or refuses new ones."""

from __future__ import annotations

import asyncio
import contextlib
import random


class Proxy:
    """Stands between two parties of the rendezvous."""

    def __init__(self, target: tuple[str, int], seed: int = 0) -> None:
        self._target = target
        self.random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ("127.0.0.1", 0)
        self.refusing = False
        self.stalled = False
        """Nothing comes back from the target."""
        self.slowness = 0.0
        """Seconds that each kilobyte from the target takes."""
        self.dialed = 0
        self.breaks = 0
        self.budget: tuple[int, int] | None = None
        """Bytes after which a connection breaks: drawn anew for each from this range; None: never."""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.tear()
        await asyncio.sleep(0)

    @property
    def connections(self) -> int:
        """How many pass through it now."""
        return len(self._writers) // 2

    def tear(self) -> None:
        """Break every connection now, without a goodbye."""
        for writer in list(self._writers):
            writer.transport.abort()
            self.breaks += 1

    def on_data(self, data: bytes) -> None:
        """Something passes, in either direction."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        self.dialed += 1
        left = [self.random.randint(*self.budget)] if self.budget else None
        await asyncio.gather(
            self._pass(reader, back, left, True), self._pass(there, writer, left, False)
        )
        for each in (writer, back):
            each.transport.abort()
        self._writers -= {writer, back}

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        left: list[int] | None,
        up: bool,
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(65536 if up or not self.slowness else 4096):
                self.on_data(data)
                if not up:
                    await asyncio.sleep(self.slowness * len(data) / 1000)
                if left is not None:
                    data, left[0] = data[: left[0]], left[0] - len(data)
                while self.stalled and not up:
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
                if left is not None and left[0] <= 0:
                    self.breaks += 1
                    break
        writer.transport.abort() if left is not None and left[0] <= 0 else writer.close()
