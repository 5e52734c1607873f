"""Opens an authenticated connection over asyncio's streams."""

from __future__ import annotations

import asyncio

from .framing import Frame, Session, WireError

_BLOCK = 1 << 16


async def authenticate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
) -> None:
    """Opens the connection. Raises WireError: the other end does not know the secret, or hung up; OSError."""
    while True:
        if session.outgoing:
            writer.write(session.outgoing)
            session.outgoing = b""
            await writer.drain()
        if session.authenticated:
            return
        session.open(await _some(reader))


async def read_frame(reader: asyncio.StreamReader, session: Session) -> Frame:
    """Reads the next frame of a session that is authenticated. Raises WireError, OSError."""
    while (frame := session.next_frame()) is None:
        session.open(await _some(reader))
    return frame


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_BLOCK)
    if not data:
        raise WireError("the other end hung up")
    return data
