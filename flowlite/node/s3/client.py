"""Buckets as a node uses them: name, endpoint and credential, and small signed requests to S3.

`storage.json` in the node's directory (0600; written by `bucket_credentials.py` on the submitting machine) has one
entry for each use. A use is the path of a mount, or "checkpoint":

    {"/data": {"url": "s3://bucket/prefix", "endpoint_url": "http://…" | null, "region": "eu-central-1" | null,
               "credential": {"access_key", "secret_key", "session_token" | null, "expires" | null} | null,
               "source": "profile 'lab' of ~/.aws/credentials"}}

All calls block.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any
from xml.etree import ElementTree

from ..quick_dataclass import dataclass
from . import bounded_xml
from .sigv4 import Credential, signed_headers

SECONDS = 20.0
"""Timeout of one request with a small body."""
DEFAULT_REGION = "us-east-1"
MOST_ANSWER = 32 << 20
"""Maximum bytes of an answer that is held in memory, such as a part of a file; files are read in blocks."""
MOST_XML = 8 << 20
"""Maximum bytes of an answer that is parsed. A page of a list has some 4 MB."""
# For a whole answer; the time-out of a request applies between two of its parts.
_WHOLE_SECONDS = 900.0
# A page of a list may have no object, as where many were deleted.
_MOST_EMPTY_PAGES = 100


class S3Error(OSError):
    """A request was refused, or the server did not answer. The text says what and why, without any secret.

    Attributes:
        code: S3's error code ("NoSuchBucket", "SignatureDoesNotMatch"), or "" if there was no answer.
        status: HTTP status, 0 if there was no answer.
        region: The bucket's region, if the answer gives it.
    """

    def __init__(self, text: str, code: str = "", status: int = 0, region: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.status = status
        self.region = region

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        if self.code == "RequestTimeout":
            # With status 400: too little of what we send has arrived for some time, as on a line that is busy.
            return True
        # 501: the server has no such function.
        return self.status in (0, 429) or (self.status >= 500 and self.status != 501)


def no_server(what: str) -> S3Error:
    """Returns the error for an answer that S3 does not give."""
    return S3Error(f"what answers is no S3 server: {what}", status=200)


@dataclass(frozen=True)
class Response:
    """A reply: status, headers with names in lower case, and the whole body."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class S3Object:
    """One object of a listing. `key` is the whole key; `modified` is as S3 writes it."""

    key: str
    size: int
    modified: str = ""
    etag: str = ""


@dataclass(frozen=True)
class Store:
    """A bucket, or the part of it below a prefix, and how it is accessed.

    Attributes:
        url: The URL as the user gave it.
        prefix: Without slashes at its ends; "" is the whole bucket.
        endpoint_url: None for AWS itself.
        region: None if it is not known.
        source: The origin of the credential, in words.
        own_role: Whether the node's own role is used, which every tool finds and renews by itself.
    """

    url: str
    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    credential: Credential | None = field(default=None, repr=False)
    source: str = "no credential (anonymous)"
    own_role: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Store:
        """Makes a store from one entry of `storage.json`."""
        bucket, _, prefix = str(entry["url"]).removeprefix("s3://").partition("/")
        given = entry.get("credential")
        return cls(
            url=str(entry["url"]),
            bucket=bucket,
            prefix=prefix.strip("/"),
            endpoint_url=entry.get("endpoint_url"),
            region=entry.get("region"),
            credential=Credential(**given) if given else None,
            source=str(entry.get("source") or cls.source),
        )

    @classmethod
    def open(cls, storage: str | os.PathLike[str], use: str) -> Store:
        """Returns the store for a use ("/data", "checkpoint").

        Raises:
            S3Error: `storage.json` has no such entry.
        """
        entries = read_storage(storage)
        if use not in entries:
            raise S3Error(f"{os.fspath(storage)} says nothing of {use}")
        return cls.of(entries[use])

    @property
    def place(self) -> str:
        """The location for messages: the endpoint, or AWS with its region."""
        return self.endpoint_url or f"AWS ({self.region or 'region unknown'})"

    def key(self, name: str) -> str:
        """Returns the whole key of a name below the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def base(self) -> str:
        """Returns the bucket's URL, always with the bucket in the path, which every server understands."""
        region = self.region or DEFAULT_REGION
        suffix = ".cn" if region.startswith("cn-") else ""
        endpoint = self.endpoint_url or f"https://s3.{region}.amazonaws.com{suffix}"
        return f"{endpoint.rstrip('/')}/{self.bucket}"

    def request(
        self,
        method: str,
        key: str = "",
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = SECONDS,
    ) -> Response:
        """Sends one signed request. `key` is a whole key (see `key`).

        Raises:
            S3Error: The request was refused, or there was no answer, or one that is too long.
        """
        sending = self._signed(method, key, query or {}, headers or {}, body)
        with self._answer(sending, timeout) as reply:
            names = {name.lower(): value for name, value in reply.headers.items()}
            return Response(reply.status, names, _whole(reply))

    def read(
        self, key: str, start: int = 0, *, most: int | None = None, timeout: float = SECONDS
    ) -> Iterator[bytes]:
        """Yields the bytes of an object from an offset on, in blocks.

        Raises:
            S3Error: It cannot be read, or not to its end, or it has more than `most` bytes.
        """
        headers = {"range": f"bytes={start}-"} if start else {}
        with self._answer(self._signed("GET", key, {}, headers, b""), timeout) as reply:
            # Some servers know no ranges, and begin anew. The status of those that do is not always 206.
            asked = reply.headers.get("content-range", "").startswith(f"bytes {start}-")
            left = 0 if asked else start
            while left and (block := reply.read(min(left, 1 << 20))):
                left -= len(block)
            came = 0
            while block := reply.read(1 << 20):
                came += len(block)
                if most is not None and came > most:
                    raise S3Error(f"it has more than {most >> 20} MiB", status=200)
                yield block
            if reply.length:
                raise S3Error(f"the connection ended {reply.length} bytes before the end")

    def list(
        self,
        below: str = "",
        *,
        most: int | None = None,
        folded: bool = False,
        timeout: float = SECONDS,
        through: Callable[[Callable[[], Response]], Response] = lambda ask: ask(),
    ) -> Iterator[S3Object]:
        """Yields the objects whose whole key begins with `below`, sorted by key. Raises S3Error.

        Args:
            folded: All objects with a slash behind `below` are one object, whose key ends there.
            through: Makes the request for each page, for example several times.
        """
        token, given, empty = "", 0, 0
        tokens: set[str] = set()
        while True:
            page = 1000 if most is None else min(1000, most - given)
            query = {
                "list-type": "2",
                "prefix": below,
                "max-keys": str(page),
                "encoding-type": "url",
                **({"delimiter": "/"} if folded else {}),
                **({"continuation-token": token} if token else {}),
            }
            ask = partial(self.request, "GET", "", query, timeout=timeout)
            found = without_namespace(through(ask).body)
            before = given
            # Some servers do not encode names, though asked to, and then do not say that they have.
            encoded = found.findtext("EncodingType") == "url"
            for each in found.iter("Contents"):
                yield _entry(each, "Key", encoded)
                given += 1
            for each in found.iter("CommonPrefixes") if folded else ():
                yield _entry(each, "Prefix", encoded)
                given += 1
            empty = empty + 1 if given == before else 0
            token = found.findtext("NextContinuationToken") or ""
            # Some servers send more than was asked for.
            if most is not None and given >= most:
                return
            if found.findtext("IsTruncated") != "true" or not token:
                return
            if token in tokens or empty > _MOST_EMPTY_PAGES:
                what = (
                    "repeats a page" if token in tokens else f"sends {empty} pages without objects"
                )
                raise no_server(f"the list of {below or self.bucket!r} does not end, it {what}")
            tokens.add(token)

    def folders(self, below: str = "") -> tuple[str, ...]:
        """Returns the common prefixes directly below `below`, with their slash; at most the first thousand."""
        found = self.list(below, most=1000, folded=True)
        return tuple(each.key for each in found if each.key.endswith("/") and each.key != below)

    def located(self) -> Store:
        """Returns this store with its bucket's region, if AWS reports another one.

        Raises:
            S3Error: It cannot be read.
        """
        try:
            next(self.list(self.below, most=1), None)
        except S3Error as error:
            if self.is_elsewhere(error):
                moved = replace(self, region=error.region)
                next(moved.list(moved.below, most=1), None)
                return moved
            raise
        return replace(self, region=self.region or DEFAULT_REGION)

    def is_elsewhere(self, error: S3Error) -> bool:
        """Whether the server says that the bucket is in another region, which this endpoint has, too."""
        # A server of one region, such as MinIO with a region set, wants its name in the signature.
        here = self.endpoint_url is None or error.code == "AuthorizationHeaderMalformed"
        return here and bool(error.region) and error.region != self.region

    @property
    def below(self) -> str:
        """The beginning of all keys of this store."""
        return f"{self.prefix}/" if self.prefix else ""

    @contextmanager
    def _answer(self, sending: urllib.request.Request, timeout: float) -> Iterator[HTTPResponse]:
        """Sends a request and yields the answer. Raises S3Error, also for what goes wrong while it is read."""
        try:
            with _opener().open(sending, timeout=timeout) as reply:
                yield reply
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from None
        except S3Error:
            raise
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            endpoint = self.base().rpartition("/")[0]
            raise S3Error(
                f"{endpoint} does not answer as S3: {str(reason) or type(error).__name__}"
            ) from error

    def _signed(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> urllib.request.Request:
        url = f"{self.base()}/{urllib.parse.quote(key, safe='/~')}" if key else self.base()
        if query:
            url += f"?{urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)}"
        # Without a content type, urllib declares the body a form.
        sent = {"content-type": "application/octet-stream", **headers} if body else dict(headers)
        if self.credential is not None:
            region = self.region or DEFAULT_REGION
            sent = signed_headers(method, url, sent, body, self.credential, region, time.time())
        data = body if body or method in ("PUT", "POST") else None
        return urllib.request.Request(url, data=data, headers=sent, method=method)


def read_storage(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Reads `storage.json`, by use; {} if there is no file. Raises S3Error if the content is not valid."""
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise S3Error(f"{os.fspath(path)} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise S3Error(f"{os.fspath(path)} is not a JSON object")
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A signature is valid for one host, and the credential must not be sent to another one.
    def redirect_request(self, *_: Any) -> None:
        return None


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect)


def _refusal(error: urllib.error.HTTPError) -> S3Error:
    text = error.read(65536).decode("utf-8", "replace")

    def told(name: str) -> str:
        match = re.search(f"<{name}>([^<]{{1,500}})</{name}>", text)
        return match[1] if match else ""

    code = told("Code") or {403: "AccessDenied", 404: "NotFound"}.get(error.code, "")
    region = told("Region") or error.headers.get("x-amz-bucket-region", "")
    message = told("Message")
    said = ": ".join(part for part in (code or f"HTTP {error.code}", message) if part)
    return S3Error(said, code, error.code, region)


def _whole(reply: HTTPResponse) -> bytes:
    """Reads an answer to its end. Raises S3Error, OSError, HTTPException."""
    body, until = bytearray(), time.monotonic() + _WHOLE_SECONDS
    while block := reply.read1(1 << 20):
        body += block
        if len(body) > MOST_ANSWER:
            raise no_server(f"it sends more than {MOST_ANSWER >> 20} MiB")
        if time.monotonic() > until:
            raise S3Error(f"the answer did not end within {_WHOLE_SECONDS:.0f} s", status=200)
    if reply.length:
        # The connection has ended before. A read with a bound does not tell.
        raise IncompleteRead(bytes(body), reply.length)
    return bytes(body)


def without_namespace(body: bytes) -> ElementTree.Element:
    """Parses an answer, and leaves the namespace out of the names of its elements. Raises S3Error."""
    try:
        if len(body) > MOST_XML:
            raise bounded_xml.XmlTooCostly(f"a list of more than {MOST_XML >> 20} MiB")
        root = bounded_xml.parse(body)
    except (ElementTree.ParseError, bounded_xml.XmlTooCostly) as error:
        raise no_server(str(error)) from None
    for each in root.iter():
        each.tag = each.tag.rpartition("}")[2]
    return root


def _entry(found: ElementTree.Element, name: str, encoded: bool) -> S3Object:
    key = found.findtext(name) or ""
    return S3Object(
        key=urllib.parse.unquote_plus(key) if encoded else key,
        size=int(found.findtext("Size") or 0),
        modified=found.findtext("LastModified") or "",
        etag=(found.findtext("ETag") or "").strip('"'),
    )
