"""Everything a stranger can throw at the rendezvous port: nothing is accepted, and the gang is served all the same."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable

import pytest

from flowlite.node.protocol import messages as m
from flowlite.node.protocol.framing import ClientSession, Hello, ServerSession, encode
from flowlite.node.rendezvous import server
from flowlite.node.rendezvous.server import OPENING_CROWD, OPENING_TIME
from tests.node.gang import SECRET, Gang, make

FRAMES = 10_000
HELLO = Hello("task-1", "member", "i-0000", 1)
JOIN = {
    "type": "join",
    "task": "task-1",
    "attempt": 1,
    "instance": "i-0000",
    "incarnation": "evil",
    "facts": {},
}
STOP = {"type": "stop", "task": "task-1", "attempt": 1, "kind": "cancel", "reason": "evil"}


def recording() -> list[bytes]:
    """What a client of the right secret sent once, as somebody on the line would have it."""
    client, server = ClientSession(SECRET, HELLO), ServerSession(SECRET, "task-1")
    sent = [client.outgoing]
    server.receive(client.outgoing)
    client.receive(server.outgoing)
    return [*sent, client.outgoing, client.seal(encode(JOIN)), client.seal(encode(STOP))]


RECORDED = recording()


def wrong_secret(chance: random.Random) -> bytes:
    return ClientSession(chance.randbytes(32), HELLO).outgoing


def garbage(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(8, 3000)) + b"\xff" * 8


def small_garbage(chance: random.Random) -> bytes:
    body = chance.randbytes(chance.randint(40, 400))
    return struct.pack(">II", len(body) - 32, 0) + body


def oversized(chance: random.Random) -> bytes:
    return struct.pack(">II", chance.randint(5000, 2**32 - 1), chance.randint(0, 2**32 - 1))


def replayed(chance: random.Random) -> bytes:
    return b"".join(RECORDED[: chance.randint(2, len(RECORDED))])


def flipped(chance: random.Random) -> bytes:
    frame = bytearray(RECORDED[0])
    frame[chance.randrange(8, len(frame))] ^= 1 << chance.randrange(8)
    return bytes(frame)


def other_protocol(chance: random.Random) -> bytes:
    return chance.choice(
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n" * 8, b"\x16\x03\x01" + b"\0" * 80]
    )


ATTACKS: tuple[Callable[[random.Random], bytes], ...] = (
    wrong_secret,
    garbage,
    small_garbage,
    oversized,
    replayed,
    flipped,
    other_protocol,
)


async def thrown(gang: Gang, data: bytes) -> bytes:
    """Throw it; gives what came back until the server hung up."""
    reader, writer = await asyncio.open_connection(*gang.leader)
    try:
        writer.write(data)
        async with asyncio.timeout(OPENING_TIME + 5):
            return await reader.read(65536)
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


async def run_a_proper_gang(gang: Gang) -> None:
    gang.attach()
    gang.join()
    ended = await gang.until("ended")
    assert ended["outcome"] == m.DONE
    assert gang.kinds().count("joined") == len(gang.nodes)
    assert "warning" not in gang.kinds()


def test_ten_thousand_frames_are_thrown_and_none_is_accepted() -> None:
    async def scenario() -> None:
        async with make(join_timeout=120.0) as gang:
            chance, answered = random.Random(7), Counter[str]()

            async def throw(count: int) -> None:
                for _ in range(count):
                    attack = chance.choice(ATTACKS)
                    answered[attack.__name__] += bool(await thrown(gang, attack(chance)))

            await asyncio.gather(*(throw(FRAMES // 40) for _ in range(40)))
            assert gang.server.turned_away == FRAMES
            assert not gang.server._connections, "somebody got in"
            # A replayed first frame is genuine, so it is challenged; everything else is not even answered.
            assert {name for name, count in answered.items() if count} <= {"replayed"}
            await run_a_proper_gang(gang)

    asyncio.run(scenario())


def test_frames_of_a_real_session_cannot_be_replayed_into_it() -> None:
    async def scenario() -> None:
        async with make(join_timeout=60.0) as gang:
            for number in range(30):
                reader, writer = await asyncio.open_connection(*gang.leader)
                session = ClientSession(SECRET, Hello("task-1", "supervisor", "s", 1))
                writer.write(session.outgoing)
                session.receive(await reader.read(4096))
                attach = {"type": "attach", "task": "task-1", "attempt": 1, "after": 0}
                frames = [
                    session.outgoing,
                    session.seal(encode(attach)),
                    session.seal(encode(STOP)),
                ]
                again = random.Random(number).choice(
                    [[0, 1, 1], [0, 0], [0, 2], [0, 1, 0], [0, 1, 1, 2]]
                )
                writer.write(b"".join(frames[n] for n in again))
                while await reader.read(65536):
                    pass
                writer.transport.abort()
            assert gang.server.turned_away == 30
            assert gang.server.outcome is None
            await run_a_proper_gang(gang)

    asyncio.run(scenario())


@pytest.mark.parametrize("opening", [b"", RECORDED[0], RECORDED[0][:20]])
def test_idle_connections_do_not_keep_a_gang_out(
    opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than may be open at a time; whoever says nothing true is shown out, and the members get in."""
    # Longer than it takes until all have come.
    monkeypatch.setattr(server, "OPENING_PATIENCE", 6.0)
    monkeypatch.setattr(server, "OPENING_TIME", 15.0)

    async def scenario() -> None:
        async with make(join_timeout=90.0) as gang:
            held = [await asyncio.open_connection(*gang.leader) for _ in range(OPENING_CROWD + 20)]
            for _, writer in held:
                writer.write(opening)
            deadline = time.monotonic() + 90
            while (
                crowd := len(gang.server._opening)
            ) < OPENING_CROWD and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            assert crowd == OPENING_CROWD
            # On a busy machine it takes a while until the crowd has been shown out.
            gang.attach(silence=90.0)
            gang.join()
            ended = await gang.until("ended", within=90)
            assert ended["outcome"] == m.DONE
            for _, writer in held:
                writer.transport.abort()

    asyncio.run(scenario())


def test_a_friend_that_sends_nonsense_is_shown_out_and_the_gang_lives() -> None:
    nonsense: list[dict[str, object]] = [
        {"type": "nonsense"},
        {**JOIN, "facts": None},
        {**JOIN, "task": "another"},
        {"type": "ready", "task": "task-1", "attempt": 1, "facts": {}},
        {"type": "chunk", "task": "task-1", "attempt": 1},
        {**STOP, "type": "halt"},
        {},
    ]

    async def scenario() -> None:
        async with make(join_timeout=60.0) as gang:
            for message in nonsense:
                reader, writer = await asyncio.open_connection(*gang.leader)
                session = ClientSession(SECRET, HELLO)
                writer.write(session.outgoing)
                session.receive(await reader.read(4096))
                writer.write(session.outgoing + session.seal(encode(message), os.urandom(10)))
                assert await reader.read(4096) == b""
                writer.transport.abort()
            assert gang.server.turned_away == len(nonsense)
            await run_a_proper_gang(gang)

    asyncio.run(scenario())
