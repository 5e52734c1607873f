"""Objects that are uploaded in parts: begun, continued after an interruption, completed, or given up."""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from concurrent.futures import wait
from xml.sax.saxutils import escape

from ..quick_dataclass import dataclass
from .client import S3Error, no_server, without_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor, Future
    from typing import Self
    from xml.etree.ElementTree import Element

    from .client import Response

    Request = Callable[[str, str, Mapping[str, str], bytes], Response]
    """Sends a request: method, key, query, body. Raises S3Error."""

PART = 32 << 20
"""Larger objects are uploaded in parts, each of them signed and checked by the server."""
_MOST_PARTS = 9000
# Of a list, with a thousand entries in each.
_MOST_PAGES = 100
# What continues a list: elements of an answer, and the parameters of the next request that get their values.
_UPLOAD_MARKERS = {"NextKeyMarker": "key-marker", "NextUploadIdMarker": "upload-id-marker"}
_PART_MARKERS = {"NextPartNumberMarker": "part-number-marker"}
_PART_NUMBER = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An upload of one object that has been begun. All methods raise S3Error."""

    request: Request
    key: str
    id: str

    @classmethod
    def begin(cls, request: Request, key: str) -> Self:
        found = without_namespace(request("POST", key, {"uploads": ""}, b"").body)
        return cls(request, key, _text(found, "UploadId"))

    @classmethod
    def unfinished(cls, request: Request, below: str) -> list[Self]:
        """Returns the uploads that are not completed, of keys that begin with `below`, the oldest first."""
        asked = {"uploads": "", "prefix": below, "encoding-type": "url"}
        found = []
        for page in _pages(request, "", asked, _UPLOAD_MARKERS):
            for each in page.iter("Upload"):
                key = urllib.parse.unquote_plus(_text(each, "Key"))
                found.append((_text(each, "Initiated"), cls(request, key, _text(each, "UploadId"))))
        return [upload for _, upload in sorted(found, key=lambda each: each[0])]

    def sent(self) -> dict[int, str]:
        """Returns the checksums, by number, of the parts that the server has."""
        found = {}
        for page in _pages(self.request, self.key, {"uploadId": self.id}, _PART_MARKERS):
            for each in page.iter("Part"):
                number = _text(each, "PartNumber")
                if not _PART_NUMBER.fullmatch(number):
                    raise no_server("a part without a number")
                found[int(number)] = _text(each, "ETag")
        return found

    def send(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        senders: Executor,
        sent: Mapping[int, str],
        moved: Callable[[int], None],
    ) -> list[str]:
        """Sends the parts that the server does not have. Returns the checksums of all parts, in order.

        Args:
            read: Returns exactly that many bytes from that offset on.
            size: Bytes of the object.
            senders: Where the parts are sent at once.
            sent: As from `sent`.
            moved: Called with the bytes of each part that the server has; from any thread.
        """
        length = max(PART, -(-size // _MOST_PARTS))

        def send(number: int) -> str:
            start = (number - 1) * length
            body = read(start, min(length, size - start))
            tag = sent.get(number, "")
            if tag.strip('"') != hashlib.md5(body, usedforsecurity=False).hexdigest():
                query = {"partNumber": str(number), "uploadId": self.id}
                tag = self.request("PUT", self.key, query, body).headers.get("etag", "")
            moved(len(body))
            return tag

        sending: list[Future[str]] = []
        try:
            sending = [senders.submit(send, n) for n in range(1, -(-size // length) + 1)]
            return [each.result() for each in sending]
        except BaseException:
            for each in sending:
                each.cancel()
            wait(sending)
            raise

    def complete(self, tags: list[str]) -> None:
        """Makes the object of parts with these checksums."""
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
            for number, tag in enumerate(tags, 1)
        )
        text = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        try:
            done = self.request("POST", self.key, {"uploadId": self.id}, text).body
        except S3Error as error:
            # The request was sent again, because the answer to the first one was lost.
            if error.code == "NoSuchUpload" and self._is_complete(tags):
                return
            raise
        # The server answers 200 before it is done, and may still fail afterwards.
        if b"<Error>" in done:
            raise S3Error(f"putting the parts together failed: {done[:300]!r}", status=500)

    def _is_complete(self, tags: list[str]) -> bool:
        """Whether the object is there, made of parts with these checksums."""
        try:
            found = self.request("HEAD", self.key, {}, b"").headers.get("etag", "")
            parts = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
        except (S3Error, ValueError):
            return False
        whole = hashlib.md5(parts, usedforsecurity=False).hexdigest()
        return found.strip('"') == f"{whole}-{len(tags)}"

    def abort(self) -> None:
        """Gives the upload up; the server deletes its parts."""
        self.request("DELETE", self.key, {"uploadId": self.id}, b"")


def _pages(
    request: Request, key: str, asked: Mapping[str, str], markers: Mapping[str, str]
) -> Iterator[Element]:
    """Yields the answers of a list. `markers` says how one answer leads to the next."""
    after: dict[str, str] = {}
    for _ in range(_MOST_PAGES):
        page = without_namespace(request("GET", key, {**asked, **after}, b"").body)
        yield page
        if page.findtext("IsTruncated") != "true":
            return
        before = after
        after = {
            parameter: urllib.parse.unquote_plus(_text(page, element))
            for element, parameter in markers.items()
        }
        if after == before:
            raise S3Error("the server repeats a page of a list and does not end it", status=200)
    raise no_server(f"after {_MOST_PAGES} pages of a list there is another one")


def _text(found: Element, name: str) -> str:
    text = found.findtext(name)
    if text is None:
        raise no_server(f"no <{name}> in its reply")
    return text
