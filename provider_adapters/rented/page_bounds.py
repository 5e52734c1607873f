"""Bounds on the pages of one listing, so that a server that always has another page is given up."""

from __future__ import annotations

from hashlib import sha256

from flowlite.state import clock

MOST_PAGES = 200
# For all pages of a listing together; the bounds on one answer apply to each of them.
_SECONDS = 600.0


class PageBounds:
    """Counts the pages of one listing."""

    def __init__(self, most_bytes: int) -> None:
        """
        Args:
            most_bytes: Maximum of all pages together.
        """
        self._most = most_bytes
        self._bytes = 0
        self._tokens: set[bytes] = set()
        self._until = clock.monotonic() + _SECONDS

    def excess(self, size: int, token: str) -> str:
        """Says why no further page is to be asked for, or "".

        Args:
            size: Bytes of the page that was received.
            token: The token of the next page, or "" if this was the last.
        """
        self._bytes += size
        if self._bytes > self._most:
            return f"together they are longer than {self._most:,} bytes"
        if not token:
            return ""
        known = sha256(token.encode("utf-8", "replace")).digest()
        if known in self._tokens:
            return "a page leads back to one before it"
        self._tokens.add(known)
        if len(self._tokens) >= MOST_PAGES:
            return f"after {MOST_PAGES} there is another one"
        if clock.monotonic() > self._until:
            return f"after {_SECONDS:.0f} s there is another one"
        return ""
