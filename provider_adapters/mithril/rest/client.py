"""Client of Mithril's REST API. It retries what is safe to retry, and reports outcomes that it could not determine.

Reads and deletes are always retried; a POST only if the server says that it did nothing (429) or was never reached. Any
other failure of a POST raises `OutcomeUnknown`, and the caller has to look the outcome up. The key is in one header and
nowhere else: no error, log line or URL contains it.
"""

from __future__ import annotations

import logging
import random
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from flowlite.connect.bounded import parse_json
from flowlite.errors import (
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
)
from flowlite.provider import LaunchPending
from flowlite.settings.credentials import Key
from flowlite.state import clock
from provider_adapters.mithril.rest import bounded_http
from provider_adapters.mithril.rest.bounded_http import TooLong
from provider_adapters.mithril.rest.credentials import masked
from provider_adapters.mithril.rest.transport import transport_for
from provider_adapters.rented.page_bounds import PageBounds

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger("flowlite.mithril")

_TRIES = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
# Longer waits are left to the supervisor, which can be cancelled.
_LONGEST_RETRY_AFTER = 10.0
# A date is compared with the clock of this machine, which may be wrong by days.
_MOST_RETRY_AFTER = 300.0
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 30.0
_PAGE = 100
# Bytes of a listing over all its pages. Parsed, they take up to 30 times as much memory.
_MOST_LISTED = 4 << 20
# The same for a history, of which one page at a time is held.
_MOST_HISTORY = 1 << 30
# Machines on each page of a history, and on each if such a page would be too long.
_HISTORY_PAGES = (_PAGE, 10, 1)
_REPEATABLE = frozenset({"GET", "PATCH", "DELETE"})
_LONGEST_DETAIL = 600


class ApiRefused(ProviderError):
    """The API refused the request; nothing was done.

    Attributes:
        status: HTTP status.
        detail: The API's own message.
    """

    def __init__(self, message: str, status: int, detail: str) -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail


class NotThere(ApiRefused):
    """The requested object does not exist (404)."""


class OutcomeUnknown(ProviderError):
    """It is not known whether something was created: the answer got lost, or the server failed."""


class Unreachable(LaunchPending):
    """The API does not answer now, or is rate-limiting. Nothing was done; a later try may succeed."""


class MithrilApi:
    """The API with one account's key. May be used by several threads."""

    def __init__(
        self,
        url: str,
        key: Key,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = clock.sleep,
        key_now: Callable[[str], Key | None] = lambda _: None,
    ) -> None:
        """
        Args:
            url: URL of the API.
            key: The account's key.
            key_now: Returns the key as it is now. It is asked when the API does not take the one before any more: a
                supervisor may outlive it, and the user has put another one in its place. It is given the key that was
                refused if the API has taken it before, else "".
        """
        module = import_httpx()
        from flowlite import __version__

        self._url = url
        self._sleep = sleep
        self._secret = key.value
        self._taken = ""
        self._key_now = key_now
        self.key_origin = key.origin
        # Redirects are not followed: the key is only sent to the configured host.
        self._client: httpx.Client = module.Client(
            base_url=url,
            transport=transport or transport_for(url, module),
            follow_redirects=False,
            timeout=module.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            event_hooks={"response": [bounded_http.bounded]},
            headers={
                "Authorization": f"Bearer {key.value}",
                "User-Agent": f"flowlite/{__version__}",
                "Accept": "application/json",
                # A compressed body may expand to any size.
                "Accept-Encoding": "identity",
            },
        )

    @property
    def url(self) -> str:
        """URL of the API."""
        return self._url

    # Requests. Paths begin with /v2.

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        """Sends a GET request and returns the answer."""
        return self._send("GET", path, query=query)

    def pages(
        self, path: str, query: Mapping[str, str | int], key: str = "data"
    ) -> list[dict[str, Any]]:
        """All entries of a paginated list; each page has its entries under `key`."""
        return list(self._entries(path, query, key))

    def histories(self, path: str, query: Mapping[str, str | int]) -> Iterator[dict[str, Any]]:
        """The histories of instances, each of which grows for as long as its instance runs. Some may come twice."""
        for size in _HISTORY_PAGES:
            try:
                yield from self._entries(path, query, "instances", size, _MOST_HISTORY)
            except TooLong:
                if size == _HISTORY_PAGES[-1]:
                    raise
            else:
                return

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Creates something, once. Raises OutcomeUnknown if the outcome has to be looked up."""
        return self._send("POST", path, body=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Sets values of something, which may be repeated."""
        return self._send("PATCH", path, body=body)

    def delete(self, path: str) -> bool:
        """Deletes something; False if it did not exist."""
        try:
            self._send("DELETE", path)
        except NotThere:
            return False
        return True

    # Helpers

    def _entries(
        self,
        path: str,
        query: Mapping[str, str | int],
        key: str,
        size: int = _PAGE,
        most: int = _MOST_LISTED,
    ) -> Iterator[dict[str, Any]]:
        asked: dict[str, str | int] = {**query, "limit": size}
        bounds = PageBounds(most)
        while True:
            answer = self._ask("GET", path, asked, None)
            page = self._read("GET", path, answer)
            if not isinstance(page, dict) or not isinstance(page.get(key), list):
                raise ProviderError(f"Mithril: GET {path} did not answer with a page of entries")
            cursor = str(page.get("next_cursor") or "")
            excess = bounds.excess(len(answer.content), cursor)
            if excess:
                raise ProviderError(
                    f"Mithril: the pages of GET {path} do not end: {excess}; is {self._url} its API?"
                )
            yield from page[key]
            if not cursor:
                return
            asked["next_cursor"] = cursor

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._read(method, path, self._ask(method, path, query, body))

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
    ) -> httpx.Response:
        """Sends a request, again if that may help. The answer may be a refusal."""
        for attempt in range(1, _TRIES + 1):
            last = attempt == _TRIES
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(
                0.8, 1.2
            )
            answer = self._try(method, path, query, body, last)
            if answer is not None:
                if answer.status_code == 401 and not last and self._has_other_key(answer):
                    # Nothing was done.
                    continue
                if answer.is_success:
                    self._taken = answer.request.headers["Authorization"].removeprefix("Bearer ")
                if not _worth_repeating(method, answer.status_code):
                    return answer
                asked = _retry_after(answer)
                if last or (asked or 0.0) > _LONGEST_RETRY_AFTER:
                    raise self._error(method, path, answer)
                pause = max(pause, asked or 0.0)
            self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _has_other_key(self, refused: httpx.Response) -> bool:
        """Whether there is another key than the one that was refused, with which requests are sent from now on."""
        try:
            key = self._key_now(self._taken)
        except PermissionRefused:
            return False
        if key is None:
            return False
        ours = f"Bearer {key.value}"
        if ours == refused.request.headers["Authorization"]:
            return False
        self._secret, self.key_origin = key.value, key.origin
        self._client.headers["Authorization"] = ours
        return True

    def _try(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
        last: bool,
    ) -> httpx.Response | None:
        """Sends one request. None if it failed and may be retried."""
        module = import_httpx()
        ours = f"flow-{secrets.token_hex(6)}"
        began = clock.monotonic()
        try:
            answer = self._client.request(
                method,
                path,
                params=dict(query) if query else None,
                json=dict(body) if body is not None else None,
                headers={"X-Request-Id": ours},
            )
        except TooLong as error:
            if method not in _REPEATABLE:
                raise OutcomeUnknown(f"Mithril: {method} {path}: {error}") from None
            raise TooLong(f"Mithril: {method} {path}: {error}; is {self._url} its API?") from None
        except module.HTTPError as error:
            what = f"{method} {path} ({ours})"
            _log.debug("%s: %s", what, type(error).__name__)
            never_sent = isinstance(error, module.ConnectError | module.ConnectTimeout)
            if method not in _REPEATABLE and not never_sent:
                raise OutcomeUnknown(
                    f"Mithril did not answer {what}: {self._clean(str(error) or type(error).__name__)}"
                ) from None
            if last:
                raise Unreachable(
                    f"Mithril cannot be reached at {self._url}: "
                    f"{self._clean(str(error) or type(error).__name__)} ({what})",
                    retry_after=_LONGEST_RETRY_AFTER,
                ) from None
            return None
        _log.debug(
            "%s %s: %d in %.0f ms (%s)",
            method,
            path,
            answer.status_code,
            1000 * (clock.monotonic() - began),
            _request_id(answer),
        )
        return answer

    def _read(self, method: str, path: str, answer: httpx.Response) -> Any:
        if not answer.is_success:
            raise self._error(method, path, answer)
        if answer.status_code == 204 or not answer.content:
            return None
        try:
            return parse_json(answer.content, bounded_http.most_bytes(path))
        except ValueError:
            if method not in _REPEATABLE:
                raise OutcomeUnknown(
                    f"Mithril answered POST {path} with something else than JSON"
                ) from None
            # A page of a proxy, or of the API's own front: it may answer again.
            raise Unreachable(
                f"Mithril: {method} {path} was answered with something else than JSON; is {self._url} its API?",
                retry_after=_LONGEST_RETRY_AFTER,
            ) from None

    def _error(self, method: str, path: str, answer: httpx.Response) -> ProviderError:
        status, detail = answer.status_code, self._clean(_detail(answer))
        said = f"{detail} (HTTP {status}, {method} {path}, request {_request_id(answer)})"
        if _is_foreign(answer):
            text = (
                f"something else than Mithril's API answers at {self._url}, as a proxy does: {said}"
            )
            if method in _REPEATABLE:
                return Unreachable(text, retry_after=_LONGEST_RETRY_AFTER)
            return OutcomeUnknown(text)
        if status == 401:
            return PermissionRefused(
                f"Mithril does not take the API key from {self.key_origin}: {said}. "
                "Make a new one in its console, under API keys; for tasks that run, put it into keys/mithril of "
                "FLOW_HOME (mode 0600)"
            )
        if status == 403:
            return PermissionRefused(
                f"Mithril does not allow {method} {path} with this key: {said}"
            )
        if status == 404:
            return NotThere(f"Mithril: {said}", status, detail)
        if status == 429:
            wait = _retry_after(answer) or _LONGEST_RETRY_AFTER
            return Unreachable(f"Mithril asks us to wait: {said}", retry_after=wait)
        if status >= 500:
            if method in _REPEATABLE:
                wait = _retry_after(answer) or _LONGEST_RETRY_AFTER
                return Unreachable(f"Mithril has trouble: {said}", retry_after=wait)
            return OutcomeUnknown(f"Mithril failed: {said}")
        if "quota" in detail.lower():
            return QuotaExceeded(f"Mithril: {said}")
        return ApiRefused(f"Mithril refuses: {said}", status, detail)

    def _clean(self, text: str) -> str:
        return masked(text.replace(self._secret, "…"))[:_LONGEST_DETAIL]


def import_httpx() -> Any:
    """Imports `httpx` without its command line, which would import rich and pygments.

    Raises:
        ProviderError: It is not installed.
    """
    if "httpx" not in sys.modules:
        sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        import httpx
    except ImportError:
        raise ProviderError(
            "the provider mithril needs the package httpx, which flowlite brings along: pip install httpx"
        ) from None
    return httpx


def _worth_repeating(method: str, status: int) -> bool:
    return status == 429 or (status >= 500 and method in _REPEATABLE)


def _is_foreign(answer: httpx.Response) -> bool:
    """Whether a refusal is not the API's, which says it as JSON: it redirects, or is a page of a proxy or gateway."""
    if answer.status_code < 400:
        return True
    if answer.status_code in (401, 429) or answer.status_code >= 500 or not answer.content:
        return False
    try:
        parse_json(answer.content)
    except ValueError:
        return True
    return False


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds that the server asks us to wait, given as a number or a date; `_MOST_RETRY_AFTER` at most."""
    text = answer.headers.get("Retry-After", "").strip()
    try:
        asked = float(text)
    except ValueError:
        try:
            asked = parsedate_to_datetime(text).timestamp() - clock.wall()
        except ValueError:
            return None
    return min(max(0.0, asked), _MOST_RETRY_AFTER)


def _request_id(answer: httpx.Response) -> str:
    names = ("x-request-id", "x-correlation-id")
    found = next((answer.headers[name] for name in names if name in answer.headers), None)
    return str(found or answer.request.headers.get("X-Request-Id", "?"))


def _detail(answer: httpx.Response) -> str:
    """The server's error message: a text, or a list of fields with the error of each."""
    try:
        found = parse_json(answer.content)
    except ValueError:
        return " ".join(answer.text.split())[:200] or answer.reason_phrase
    detail = found.get("detail", found) if isinstance(found, dict) else found
    if isinstance(detail, list):
        return "; ".join(_field(each) for each in detail)
    return str(detail)


def _field(problem: Any) -> str:
    if not isinstance(problem, dict):
        return str(problem)
    found = problem.get("loc")
    parts = found if isinstance(found, list) else [found or "body"]
    where = ".".join(str(part) for part in parts if part != "body")
    return f"{where}: {problem.get('msg', '?')}" if where else str(problem.get("msg", problem))
