"""Calls of clouds without a network: what botocore and httpx would send goes to the fake's own handler.

Both libraries have a place where everything that they send passes: botocore's event "before-send", which moto uses in
the same way, and httpx's transport. What is before them (signatures, retries, the parsing of answers) stays theirs.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from flowlite.testing.cloud.serving import Gate


class Unanswered(Exception):
    """The fake says nothing, whatever it did."""


@dataclass(frozen=True)
class Answer:
    """What the fake says."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def call(gate: Gate, method: str, url: str, headers: dict[str, str], body: bytes) -> Answer:
    """One request. Raises Unanswered."""
    parts = urlsplit(url)
    path = parts.path or "/"
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": f"{path}?{parts.query}",
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(path),
        "QUERY_STRING": parts.query,
        "SERVER_NAME": parts.hostname or "",
        "SERVER_PORT": str(parts.port or 80),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": parts.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    # What is signed is the host as the client knows it.
    for name, value in {"Host": parts.netloc, **headers}.items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    said: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], failure: Any = None) -> None:
        said[:] = [int(status.split()[0]), headers]

    try:
        content = b"".join(gate(environ, start))
    except ConnectionAbortedError as error:
        raise Unanswered(str(error)) from error
    return Answer(said[0], said[1], content)


@contextmanager
def botocore_through(gate: Gate, before: Callable[[], None]) -> Iterator[None]:
    """All of botocore's clients that are made meanwhile. `before` each of their calls, something is done."""
    from botocore import handlers
    from botocore.awsrequest import AWSResponse
    from botocore.exceptions import ReadTimeoutError

    class Raw(io.BytesIO):
        def stream(self, **_: Any) -> Iterator[bytes]:
            while chunk := self.read():
                yield chunk

    def send(request: Any, **_: Any) -> AWSResponse:
        before()
        body = request.body or b""
        headers = {
            name: value.decode() if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
        }
        body = body.encode() if isinstance(body, str) else body
        try:
            answer = call(gate, request.method, request.url, headers, body)
        except Unanswered as error:
            raise ReadTimeoutError(endpoint_url=request.url) from error
        return AWSResponse(request.url, answer.status, dict(answer.headers), Raw(answer.body))

    entry = ("before-send", send)
    handlers.BUILTIN_HANDLERS.append(entry)
    try:
        yield
    finally:
        handlers.BUILTIN_HANDLERS.remove(entry)


@contextmanager
def httpx_through(gate: Gate, before: Callable[[], None]) -> Iterator[None]:
    """All of httpx's clients, in the same way."""
    import httpx

    def send(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        before()
        body = request.read()
        try:
            answer = call(gate, request.method, str(request.url), dict(request.headers), body)
        except Unanswered as error:
            raise httpx.ReadTimeout(str(error), request=request) from error
        return httpx.Response(
            answer.status, headers=answer.headers, stream=httpx.ByteStream(answer.body)
        )

    with mock.patch.object(httpx.HTTPTransport, "handle_request", send):
        yield
