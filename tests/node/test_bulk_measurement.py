"""What nodes say when the paths between them are measured before GO."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowlite.node.preflight import connectivity
from flowlite.node.preflight.connectivity import ConnectivityCheck, authenticate, read_frame
from flowlite.node.protocol.framing import CHECK_ROLE, ServerSession, encode
from flowlite.node.protocol.messages import pack_places

SECRET = b"s" * 32


async def measured(answer: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a node reports of the path to one that says this of the bytes that came; None: the truth."""
    monkeypatch.setattr(connectivity, "BULK_SECONDS", 0.05)

    def check(rank: int) -> ConnectivityCheck:
        return ConnectivityCheck("t1", 1, rank, 2, SECRET, silence=lambda _: 0.0, longest=1.0)

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = ServerSession(SECRET, "t1", (CHECK_ROLE,))
        await authenticate(reader, writer, session)
        await read_frame(reader, session)
        while await reader.read(1 << 20):
            pass
        writer.write(session.seal(encode(answer), b""))
        await writer.drain()
        writer.close()

    honest = check(1)
    handler = honest._answer if answer is None else lie
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        order = {"connectivity": pack_places(["127.0.0.2", "127.0.0.1"], [0, port])}
        return await check(0).measure(order)


def test_the_path_to_a_node_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asyncio.run(measured(None, monkeypatch))
    assert set(found) == {"1"}
    assert found["1"] > 0


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"received": "x"},
        {"received": [1]},
        {"received": -1},
        {"received": 1e300},
        {"received": 2**70},
    ],
    ids=str,
)
def test_a_node_that_says_what_cannot_be_has_a_path_that_does_not_work(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that has measured goes on; it is not the one that fails, or that sends the leader what is no number."""
    assert asyncio.run(measured(answer, monkeypatch)) == {"1": 0.0}
