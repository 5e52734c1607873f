"""Bounds on AWS's answers, in bytes and in time: botocore reads each one whole before it parses it."""

from __future__ import annotations

import time
from typing import Any

MOST_BYTES = 4 << 20
"""Maximum bytes of one answer, which is one page of a listing. Parsed, some documents take 80 times as much memory."""
# For a whole answer; botocore's `read_timeout` applies between two of its parts.
_SECONDS = 120.0
_BLOCK = 64 << 10


def bound(client: Any) -> None:
    """Makes an answer to this boto3 client that does not end raise a `botocore.exceptions.HTTPClientError`."""
    endpoint = client._endpoint
    endpoint.http_session = _BoundedSession(endpoint.http_session)


class _BoundedSession:
    """A botocore HTTP session that reads no more of an answer than it may have."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        """Sends a request and reads the whole answer."""
        # Otherwise the session reads all of it by itself.
        request.stream_output = True
        answer = self._session.send(request)
        answer._content = _read(answer.raw, request)
        return answer

    def close(self) -> None:
        self._session.close()


def _read(raw: Any, request: Any) -> bytes:
    from botocore import exceptions
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    parts, size, until = [], 0, time.monotonic() + _SECONDS
    try:
        for block in raw.stream(_BLOCK):
            size += len(block)
            if size > MOST_BYTES:
                raise ValueError(f"the answer is longer than {MOST_BYTES:,} bytes")
            if time.monotonic() > until:
                raise ValueError(f"the answer did not end within {_SECONDS:.0f} s")
            parts.append(block)
    except ReadTimeoutError as error:
        raise exceptions.ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except HTTPError as error:
        raise exceptions.ConnectionClosedError(
            error=error, request=request, endpoint_url=request.url
        ) from error
    except ValueError as error:
        # The rest is not read, so the connection cannot be used again.
        raw.close()
        raise exceptions.HTTPClientError(error=error) from error
    return b"".join(parts)
