"""Bounds on what AWS answers botocore, in bytes, time and memory: botocore reads each answer whole and parses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowlite.connect import botocore_credential_process, botocore_mfa, botocore_models
from flowlite.node.s3 import bounded_xml

if TYPE_CHECKING:
    from botocore.session import Session

MOST_BYTES = 4 << 20
"""Maximum bytes of one answer, which is one page of a listing."""
# For a whole answer; botocore's `read_timeout` applies between two of its parts.
_SECONDS = 120.0
_BLOCK = 64 << 10
# Of a JSON document: bytes for each object or list, and how many of them any document may have.
_LEAST_BYTES, _OBJECTS_OF_ANY = 16, 1_000


def session(**arguments: Any) -> Session:
    """A botocore session. An answer that exceeds the bounds raises a `botocore.exceptions.HTTPClientError`.

    That holds for all its clients, those that botocore makes to obtain credentials (STS, SSO) included, and for the
    metadata services of machines and containers.

    Args:
        arguments: Of `botocore.session.Session`.
    """
    import botocore.session

    class Bounded(botocore.session.Session):  # type: ignore[misc]
        def get_component(self, name: str) -> Any:
            if name == "data_loader":
                return botocore_models.loader(self.get_config_variable("data_path"))
            return super().get_component(name)

        def create_client(self, *args: Any, **options: Any) -> Any:
            client = super().create_client(*args, **options)
            endpoint = client._endpoint
            endpoint.http_session = _bounded(endpoint.http_session)
            return client

        def get_credentials(self) -> Any:
            for provider in self.get_component("credential_provider").providers:
                botocore_credential_process.bound(provider)
                for name in ("_role_fetcher", "_fetcher"):
                    fetcher: Any = getattr(provider, name, None)
                    # What sends is an HTTP session; botocore calls others by this name, too.
                    if hasattr(getattr(fetcher, "_session", None), "send"):
                        fetcher._session = _bounded(fetcher._session, documents=False)
            botocore_mfa.share_sessions(self)
            return super().get_credentials()

    return Bounded(**arguments)


def _bounded(http: Any, documents: bool = True) -> _BoundedSession:
    return http if isinstance(http, _BoundedSession) else _BoundedSession(http, documents)


class _BoundedSession:
    """A botocore HTTP session that reads no more of an answer than it may have.

    Args:
        documents: Whether botocore parses every answer as XML or JSON. It does not parse the errors of a metadata
            service, which are HTML.
    """

    def __init__(self, http: Any, documents: bool) -> None:
        self._http = http
        self._documents = documents

    def send(self, request: Any) -> Any:
        """Sends a request and reads the whole answer."""
        # Otherwise the session reads all of it by itself.
        request.stream_output = True
        answer = self._http.send(request)
        answer._content = _read(answer.raw, request, _check if self._documents else None)
        # Also where the answer came in parts of unknown number, so that a listing can count what it was told.
        answer.headers["Content-Length"] = str(len(answer._content))
        return answer

    def close(self) -> None:
        self._http.close()


def _read(raw: Any, request: Any, check: Callable[[bytes], None] | None) -> bytes:
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
        whole = b"".join(parts)
        if check is not None:
            check(whole)
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
    return whole


def _check(answer: bytes) -> None:
    """Raises ValueError if to parse an answer, as XML or JSON, would take too much memory."""
    if answer.lstrip()[:1] in (b"{", b"["):
        objects = answer.count(b"{") + answer.count(b"[")
        if objects > _OBJECTS_OF_ANY + len(answer) // _LEAST_BYTES:
            raise ValueError("the answer is not one of AWS: it has too many objects for its size")
        return
    try:
        bounded_xml.check(answer)
    except bounded_xml.XmlTooCostly as error:
        raise ValueError(f"the answer is not one of AWS: {error}") from error
