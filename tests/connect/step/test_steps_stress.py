"""Much at a time through one command, much of it broken off: every byte is right, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite.connect.step import StepConnection
from flowlite.connect.values import File
from flowlite.errors import AnswerTooLong
from flowlite.node.system import processes
from tests.helpers import eventually

Step = Callable[..., StepConnection]
CONTENT = os.urandom(1 << 20) * 3


@pytest.mark.parametrize("seed", range(3))
def test_anything_at_a_time(step: Step, tmp_path: Path, seed: int) -> None:
    connection = step(step(prefix=())) if seed == 2 else step()
    (tmp_path / "file").write_bytes(CONTENT)
    server = connection.open()["pid"]
    before = _open_files(server)
    dice = random.Random(seed)
    orders = [(dice.choice(_WHATS), random.Random(dice.random()), i) for i in range(80)]
    with ThreadPoolExecutor(12) as threads:
        for done in [threads.submit(what, connection, tmp_path, *more) for what, *more in orders]:
            done.result()
    assert connection.open()["pid"] == server
    eventually(lambda: not processes.descendants([server]), what="its children ended")
    eventually(lambda: _open_files(server) <= before, what="it has closed all")
    assert not list(tmp_path.glob("**/*.part"))


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _echo(connection: StepConnection, _: Path, dice: random.Random, __: int) -> None:
    data = CONTENT[: dice.choice((0, 1, 100, 65536, 2_000_000))]
    assert connection.run(["cat"], input=data, timeout=120).stdout == data


def _read_some(connection: StepConnection, place: Path, dice: random.Random, _: int) -> None:
    offset = dice.randrange(len(CONTENT))
    blocks = connection.read(str(place / "file"), offset)
    taken = b"".join(block for block, _ in zip(blocks, range(dice.randrange(1, 40)), strict=False))
    assert CONTENT[offset:].startswith(taken)
    blocks.close()  # type: ignore[attr-defined]


def _put(connection: StepConnection, place: Path, dice: random.Random, number: int) -> None:
    data = CONTENT[: dice.randrange(200_000)]
    target = place / "put" / str(number)
    connection.put_many([File(str(target), data), File(f"{target}.x", b"x", 0o700)])
    assert target.read_bytes() == data


def _break_off(connection: StepConnection, _: Path, dice: random.Random, __: int) -> None:
    script = dice.choice(("exec sleep 1000", "cat /dev/zero", "sleep 1000 & wait"))
    with suppress(TimeoutError, AnswerTooLong):
        connection.run(["sh", "-c", script], input=CONTENT, timeout=dice.random() / 2)


def _tcp(connection: StepConnection, _: Path, dice: random.Random, __: int) -> None:
    whole, data = dice.random() < 0.7, CONTENT[: dice.randrange(1, 500_000)]

    async def scenario() -> None:
        reader, writer = await connection.open_tcp("127.0.0.1", PORTS[0])
        writer.write(data)
        if whole:
            writer.write_eof()
            assert await reader.read() == data
        # At once, whatever is still to be sent: there is no loop any more that would do so.
        writer.transport.abort()

    asyncio.run(asyncio.wait_for(scenario(), 120))


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            while block := self.request.recv(65536):
                self.request.sendall(block)


@pytest.fixture(autouse=True)
def echoing() -> Iterator[None]:
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        PORTS[:] = [server.server_address[1]]
        yield
        server.shutdown()


PORTS = [0]
_WHATS = (_echo, _read_some, _put, _break_off, _tcp)
