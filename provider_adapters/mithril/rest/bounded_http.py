"""Bounds on HTTP responses, in bytes and in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowlite.connect.bounded import MOST_JSON
from flowlite.errors import ProviderError

if TYPE_CHECKING:
    import httpx

# For a whole response; the timeouts of httpx apply between two of its parts.
_SECONDS = 120.0

_HISTORY, _KEYS = "/history", "/api-keys"
# Prices change with every auction, every two minutes: this is the history of one machine over three months.
_MOST_HISTORY = 8 << 20
# One list without pages, with every key that was ever made, revoked ones too: one for each bid.
_MOST_KEYS = 32 << 20


class TooLong(ProviderError):
    """An answer is longer than is accepted. It would not be shorter at the next try."""


def most_bytes(path: str) -> int:
    """The bytes of an answer that are accepted from a path of the API."""
    if path.endswith(_KEYS):
        return _MOST_KEYS
    return _MOST_HISTORY if path.endswith(_HISTORY) else MOST_JSON


def bounded(answer: httpx.Response) -> None:
    """Makes a response without end raise `TooLong` or an error of httpx; called before its body is read."""
    import httpx

    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx.DecodingError("the answer is compressed, which was not asked for")
    stream = answer.stream
    assert isinstance(stream, httpx.SyncByteStream)
    answer.stream = _bounded_stream(stream, most_bytes(answer.request.url.path))


def _bounded_stream(stream: httpx.SyncByteStream, most: int) -> httpx.SyncByteStream:
    import httpx

    class Bounded(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            size, until = 0, time.monotonic() + _SECONDS
            for block in stream:
                size += len(block)
                if size > most:
                    raise TooLong(f"the answer is longer than {most:,} bytes")
                if time.monotonic() > until:
                    raise httpx.ReadTimeout(f"the answer did not end within {_SECONDS:.0f} s")
                yield block

        def close(self) -> None:
            stream.close()

    return Bounded()
