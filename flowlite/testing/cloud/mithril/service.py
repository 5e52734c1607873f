"""The API as a service of the box: finds the operation of a request, authenticates it, and formats the reply."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from flowlite.testing.cloud.fault import Fault
from flowlite.testing.cloud.fault_injection import Habits
from flowlite.testing.cloud.mithril import shapes
from flowlite.testing.cloud.mithril.errors import Refused, failure_text, unauthorized
from flowlite.testing.cloud.mithril.fleet import Fleet
from flowlite.testing.cloud.mithril.ground import Ground
from flowlite.testing.cloud.mithril.market import Market
from flowlite.testing.cloud.mithril.obeying import Obeying
from flowlite.testing.cloud.mithril.operations.bids import Bids
from flowlite.testing.cloud.mithril.operations.instances import Listing
from flowlite.testing.cloud.mithril.operations.prices import Prices
from flowlite.testing.cloud.mithril.operations.reservations import Reservations
from flowlite.testing.cloud.mithril.operations.users import People
from flowlite.testing.cloud.mithril.operations.volumes import Storage
from flowlite.testing.cloud.mithril.records import ApiKey
from flowlite.testing.cloud.mithril.request import Request
from flowlite.testing.cloud.mithril.shapes import OPERATIONS, Problem
from flowlite.testing.cloud.mithril.timer import Background, Threads
from flowlite.testing.cloud.mithril.world import Rules, World
from flowlite.testing.cloud.serving import Environ, Reply

# Seconds without a reply before the connection is dropped.
_SILENCE = 0.3
_HABITS = Habits(
    before=(
        Fault("", status=429, retry_after=0.5),
        Fault("", status=503),
        Fault("", hang=_SILENCE),
    ),
    after=(Fault("", status=502), Fault("", hang=_SILENCE)),
)
PARTS = (Bids, Listing, People, Storage, Prices, Reservations)
"""Each has operations as methods, with the names of the API's own document."""
# A fixed path comes before one with an id in its place.
_PATTERNS = [
    (each.method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", each.path)), action)
    for action, each in sorted(OPERATIONS.items(), key=lambda item: item[1].path.count("{"))
]
_TEXTS = {
    401: "Invalid credentials",
    402: "A payment method is required",
    403: "User does not have access to this project",
    404: "Not found",
    429: "Too many requests",
}


class Mithril(Obeying):
    """The whole cloud.

    Args:
        ground: What the instances run on.
        capacity: The number of machines in every auction.
        background: Runs timers and work on machines; threads by default.

    Attributes:
        wrong_replies: What its own replies had that the document forbids: defects of this fake.
    """

    def __init__(
        self,
        ground: Ground,
        capacity: int,
        rules: Rules | None = None,
        background: Background | None = None,
    ) -> None:
        self._ground = ground
        self._capacity = capacity
        self.wrong_replies: list[str] = []
        self._background = background or Threads()
        self._first_rules = rules or Rules()
        self._begin(replace(self._first_rules))

    def _begin(self, rules: Rules) -> None:
        self.world = World(self._ground, rules, self._capacity, self._background)
        self.fleet = Fleet(self.world, self._background.workers())
        self.market = Market(self.world, self.fleet)
        parts = [Bids(self.world, self.market), *(each(self.world) for each in PARTS[1:])]
        self._operations = {
            action: next(getattr(part, action) for part in parts if hasattr(part, action))
            for action in OPERATIONS
        }

    @property
    def habits(self) -> Habits:
        """The faults that Mithril may inject."""
        return _HABITS

    def close(self) -> None:
        """Ends the background threads. The machines stay."""
        self.world.timer.close()
        self.fleet.close()

    def read(self, environ: Environ, body: bytes) -> tuple[str, dict[str, Any]] | None:
        """The operation of a request and its parameters, with the name of its key."""
        request = self._request(environ, body)
        if request is None:
            return None
        with self.world.lock:
            key = self._key(request)
        return request.action, {**request.parameters, "api_key": key.name if key else ""}

    def answer(self, environ: Environ, body: bytes) -> Reply:
        """Carries out a request."""
        request = self._request(environ, body)
        if request is None:
            return self._reply("", 404, {"detail": "Not Found"})
        try:
            with self.world.lock:
                self._authenticate(request)
                request.checked()
                status, result = self._operations[request.action](request)
        except Refused as refusal:
            detail = {"detail": refusal.detail}
            return self._reply(request.action, refusal.status, detail, refusal.headers)
        return self._reply(request.action, status, result)

    def refuse(self, action: str, fault: Fault) -> Reply:
        """An injected error: JSON from the service itself, a page from the gateway in front of it."""
        status = fault.status or 400
        if status >= 500:
            text = fault.message or fault.code or failure_text(status)
            headers = [("Content-Type", "text/html"), ("X-Request-Id", _request_id())]
            return status, headers, text.encode()
        detail = fault.message or fault.code or _TEXTS.get(status, "Bad request")
        return self._reply(action, status, {"detail": detail})

    def _request(self, environ: Environ, body: bytes) -> Request | None:
        path = environ.get("PATH_INFO", "")
        called = environ["REQUEST_METHOD"]
        matches = ((a, p.fullmatch(path)) for method, p, a in _PATTERNS if method == called)
        action, found = next(((a, m) for a, m in matches if m), ("", None))
        if found is None:
            return None
        given: dict[str, str] = {}
        for name, value in parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True):
            given[name] = f"{given[name]},{value}" if name in given else value
        headers = {
            name[5:].replace("_", "-").lower(): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        values = {name: unquote(value) for name, value in found.groupdict().items()}
        query, wrong = shapes.read_query(action, given)
        try:
            content = json.loads(body) if body else None
        except ValueError:
            content, wrong = None, [Problem(("body", 0), "JSON decode error", "json_invalid")]
        else:
            wrong += shapes.body_problems(action, content)
        fields = content if isinstance(content, dict) else {}
        return Request(action, values, query, fields, headers, problems=wrong)

    def _key(self, request: Request) -> ApiKey | None:
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        keys = self.world.api_keys.values()
        return next((k for k in keys if secrets.compare_digest(k.secret, secret)), None)

    def _authenticate(self, request: Request) -> None:
        request.key = self._key(request)
        if request.key is None or not request.key.good:
            raise unauthorized("Invalid credentials")

    def _reply(
        self, action: str, status: int, result: Any, headers: dict[str, str] | None = None
    ) -> Reply:
        if action and (wrong := shapes.reply_problems(action, status, result)):
            self.wrong_replies += wrong
            status, result = 500, {"detail": f"a defect of the fake: {'; '.join(wrong)}"}
        content = b"" if status == 204 else json.dumps(result).encode()
        given = {"X-Request-Id": _request_id(), **(headers or {})}
        if status != 204:
            given["Content-Type"] = "application/json"
        return status, list(given.items()), content


def _request_id() -> str:
    return f"req_{secrets.token_hex(8)}"
