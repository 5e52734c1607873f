"""Bounds on HTTP responses, in bytes and in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowlite.connect.bounded import MOST_JSON

if TYPE_CHECKING:
    import httpx

# For a whole response; the timeouts of httpx apply between two of its parts.
_SECONDS = 120.0


def bounded(answer: httpx.Response) -> None:
    """Makes a response without end raise an error of httpx; called before its body is read."""
    import httpx

    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx.DecodingError("the answer is compressed, which was not asked for")
    stream = answer.stream
    assert isinstance(stream, httpx.SyncByteStream)
    answer.stream = _bounded_stream(stream)


def _bounded_stream(stream: httpx.SyncByteStream) -> httpx.SyncByteStream:
    import httpx

    class Bounded(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            size, until = 0, time.monotonic() + _SECONDS
            for block in stream:
                size += len(block)
                if size > MOST_JSON:
                    raise httpx.ReadError(f"the answer is longer than {MOST_JSON:,} bytes")
                if time.monotonic() > until:
                    raise httpx.ReadTimeout(f"the answer did not end within {_SECONDS:.0f} s")
                yield block

        def close(self) -> None:
            stream.close()

    return Bounded()
