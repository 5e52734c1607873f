"""The API's client: what is repeated and what is not, and that the key is nowhere to be seen."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import (
    FlowError,
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
)
from flowlite.provider import LaunchPending
from flowlite.settings.credentials import Key
from flowlite.settings.provider_settings import ProviderSettings
from provider_adapters.mithril import costs
from provider_adapters.mithril.account import Account
from provider_adapters.mithril.rest.client import (
    ApiRefused,
    MithrilApi,
    NotThere,
    OutcomeUnknown,
    Unreachable,
)

httpx = pytest.importorskip("httpx")

SECRET = "fkey_very-secret"
Answer = Callable[[Any], Any]


class Server:
    """Answers in their order, the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.requests: list[Any] = []
        self.slept: list[float] = []

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    def api(self) -> MithrilApi:
        """A client that has nobody else to talk to, and does not wait."""
        return MithrilApi(
            "https://api.example",
            Key(SECRET, "MITHRIL_API_KEY"),
            transport=httpx.MockTransport(self),
            sleep=self.slept.append,
        )


def reply(status: int, body: object = None, **headers: str) -> Any:
    return httpx.Response(status, json=body, headers=headers)


def test_the_key_goes_into_one_header() -> None:
    server = Server(reply(200, {"fid": "user_1"}))
    server.api().get("/v2/me", {"a": 1})
    (request,) = server.requests
    assert request.headers["Authorization"] == f"Bearer {SECRET}"
    assert request.headers["User-Agent"].startswith("flowlite/")
    assert SECRET not in str(request.url)
    assert str(request.url) == "https://api.example/v2/me?a=1"


def test_no_redirect_gets_the_key() -> None:
    server = Server(reply(307, None, Location="https://elsewhere.example/v2/me"))
    with pytest.raises(ProviderError, match="307"):
        server.api().get("/v2/me")
    assert [request.url.host for request in server.requests] == ["api.example"]


# The way there


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """An API or proxy here: its address, and the first lines of what it was asked. No variable names a proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.requestline)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def do_CONNECT(self) -> None:
            asked.append(self.requestline)
            self.send_error(502)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.parametrize("entry", ["::1", "::1/128", "[::1]", "fe80::/10", "10.0.0.0/8", "*.corp"])
def test_an_entry_of_no_proxy_for_other_hosts_does_no_harm(
    reached: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    where, asked = reached
    monkeypatch.setenv("NO_PROXY", f"localhost,{entry}")
    assert MithrilApi(f"http://{where}", Key(SECRET, "x")).get("/v2/me") == {}
    assert asked == ["GET /v2/me HTTP/1.1"]


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_used(
    reached: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    where, asked = reached
    monkeypatch.setenv(variable, f"{scheme}{where}")
    with pytest.raises(Unreachable, match="Bad Gateway"):
        MithrilApi("https://api.example", Key(SECRET, "x"), sleep=lambda _: None).get("/v2/me")
    assert {*asked} == {"CONNECT api.example:443 HTTP/1.1"}


def test_a_host_of_no_proxy_is_reached_directly(
    reached: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, asked = reached
    monkeypatch.setenv("HTTPS_PROXY", f"http://{where}")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1,::1/128")
    with pytest.raises(Unreachable):
        MithrilApi("https://127.0.0.1:9", Key(SECRET, "x"), sleep=lambda _: None).get("/v2/me")
    assert asked == []


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_no_proxy_gets_the_key_of_an_api_on_this_machine(
    reached: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Such as a tunnel, whose way from here to there is not encrypted."""
    where, asked = reached
    monkeypatch.setenv(variable, f"http://{where}")
    with pytest.raises(Unreachable):
        MithrilApi("http://127.0.0.1:9", Key(SECRET, "x"), sleep=lambda _: None).get("/v2/me")
    assert asked == []


@pytest.mark.parametrize(
    "proxy", ["ftp://u:hunter2@p:1", "http://u:hunter2@p:no", "http://u:hunter/2@p"]
)
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable_without_its_password(
    reached: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ProviderError, match="HTTPS_PROXY does not name a proxy") as caught:
        MithrilApi("https://api.example", Key(SECRET, "x"))
    assert "hunter" not in str(caught.value)


def test_certificates_that_are_not_there_are_named_by_their_variable(
    reached: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(ProviderError, match=r"No such file or directory.*SSL_CERT_FILE"):
        MithrilApi("https://api.example", Key(SECRET, "x"))


# Pages


def test_pages_are_put_together() -> None:
    def page(request: Any) -> Any:
        at = int(request.url.params.get("next_cursor", "0"))
        assert request.url.params["limit"] == "100"
        return reply(200, {"data": [{"n": at}], "next_cursor": str(at + 1) if at < 3 else None})

    found = Server(page).api().pages("/v2/spot/bids", {"project": "p"})
    assert [each["n"] for each in found] == [0, 1, 2, 3]


def test_pages_that_go_in_a_circle_are_an_error() -> None:
    server = Server(reply(200, {"data": [], "next_cursor": "again"}))
    with pytest.raises(ProviderError, match="do not end"):
        server.api().pages("/v2/spot/bids", {})
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("circle", "asked", "said"), [(3, 4, "leads back"), (10**9, 200, "after 200 there is another")]
)
def test_pages_that_do_not_end_are_an_error(circle: int, asked: int, said: str) -> None:
    def page(request: Any) -> Any:
        at = int(request.url.params.get("next_cursor", "0"))
        return reply(200, {"data": [], "next_cursor": str(at % circle + 1)})

    server = Server(page)
    with pytest.raises(ProviderError, match=f"do not end: .*{said}.*https://api.example"):
        server.api().pages("/v2/spot/bids", {})
    assert len(server.requests) == asked


def test_a_page_of_another_form_is_an_error() -> None:
    with pytest.raises(ProviderError, match="page of entries"):
        Server(reply(200, [])).api().pages("/v2/spot/bids", {})


def history(number: int, days: float) -> dict[str, Any]:
    """The prices of one machine that change with every auction, as they do where demand is high."""
    start, often = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=2)
    times = [(start + at * often).isoformat() for at in range(int(days * 720) + 1)]
    periods = zip(times, [*times[1:-1], None], strict=False)
    events = [
        {"price_cents": 1800 + at % 2, "start_time": since, "end_time": until}
        for at, (since, until) in enumerate(periods)
    ]
    return {"instance_fid": f"inst_{number:016d}", "bid_fid": "bid_1", "events": events}


@pytest.mark.parametrize(("machines", "days"), [(8, 5.0), (16, 7.0), (64, 2.0), (1, 60.0)])
def test_the_bill_of_a_gang_that_runs_for_long_is_read_whole(machines: int, days: float) -> None:
    every = [history(number, days) for number in range(machines)]

    def page(request: Any) -> Any:
        if "status" in request.url.path:
            return reply(200, {"instances": [], "next_cursor": None})
        asked = request.url.params
        at, size = int(asked.get("next_cursor", "0")), int(asked["limit"])
        more = str(at + size) if at + size < machines else None
        body = {"instances": every[at : at + size], "next_cursor": more}
        return httpx.Response(200, content=iter([json.dumps(body).encode()]))

    bill = costs.bill_of(Server(page).api(), "proj_1", "bid_1")
    assert len(bill) == machines
    assert {len(each.prices) for each in bill.values()} == {int(days * 720)}
    assert not any(each.until for each in bill.values())


def test_the_keys_of_tens_of_thousands_of_bids_are_read() -> None:
    """Mithril lists revoked ones, too, and has no pages for them."""
    keys = [
        {
            "fid": f"apikey_{number:016d}",
            "name": f"flow-1234abcd-tabcdefghij-launch-1-1-{number:08x}",
            "snippet": "fkey_12345...",
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-02-01T00:00:00Z",
            "deactivated_at": "2026-01-01T01:00:00Z",
        }
        for number in range(40_000)
    ]
    server = Server(lambda _: httpx.Response(200, content=iter([json.dumps(keys).encode()])))
    assert len(server.api().get("/v2/api-keys")) == len(keys)


# Repeating


@pytest.mark.parametrize(
    "trouble",
    [reply(503), reply(500), reply(429), httpx.ReadTimeout("slow"), httpx.ConnectError("down")],
)
@pytest.mark.parametrize("method", ["get", "delete"])
def test_reading_and_deleting_are_repeated(method: str, trouble: Any) -> None:
    server = Server(trouble, trouble, reply(204))
    getattr(server.api(), method)("/v2/x")
    assert len(server.requests) == 3
    assert server.slept == sorted(server.slept)


@pytest.mark.parametrize(
    "trouble", [reply(503), httpx.ReadTimeout("slow"), httpx.ConnectError("down")]
)
def test_there_is_an_end_to_it(trouble: Any) -> None:
    server = Server(trouble)
    with pytest.raises(Unreachable) as caught:
        server.api().get("/v2/x")
    assert len(server.requests) == 4
    assert isinstance(caught.value, LaunchPending)
    assert caught.value.retry_after > 0


@pytest.mark.parametrize(
    "trouble",
    [
        reply(500),
        reply(502),
        reply(504),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
    ],
)
def test_what_makes_something_is_sent_once(trouble: Any) -> None:
    server = Server(trouble)
    with pytest.raises(OutcomeUnknown):
        server.api().post("/v2/spot/bids", {})
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "trouble", [reply(429), httpx.ConnectError("down"), httpx.ConnectTimeout("down")]
)
def test_what_had_no_effect_for_certain_is_sent_again(trouble: Any) -> None:
    server = Server(trouble, reply(201, {"fid": "bid_1"}))
    assert server.api().post("/v2/spot/bids", {}) == {"fid": "bid_1"}
    assert len(server.requests) == 2


def test_an_answer_to_a_post_that_is_not_json_is_to_be_looked_up() -> None:
    server = Server(httpx.Response(201, text="<html>"))
    with pytest.raises(OutcomeUnknown):
        server.api().post("/v2/spot/bids", {})


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_short_retry_after_is_kept_to(form: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=5), usegmt=True)
    asked = "3" if form == "seconds" else date
    server = Server(reply(429, None, **{"Retry-After": asked}), reply(200, {}))
    server.api().get("/v2/x")
    assert 2.0 <= server.slept[0] <= 6.0


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("1e9", 300.0), ("inf", 300.0), ("nan", 10.0), ("Fri, 01 Jan 2100 00:00:00 GMT", 300.0)],
)
def test_nobody_waits_for_years(asked: str, seconds: float) -> None:
    server = Server(*[reply(429, {"detail": "slow down"}, **{"Retry-After": asked})] * 4)
    with pytest.raises(Unreachable) as raised:
        server.api().get("/v2/x")
    assert raised.value.retry_after == seconds


def test_a_long_retry_after_is_for_the_caller_who_can_be_cancelled() -> None:
    server = Server(reply(429, {"detail": "slow down"}, **{"Retry-After": "90"}))
    with pytest.raises(Unreachable, match="slow down") as caught:
        server.api().post("/v2/spot/bids", {})
    assert caught.value.retry_after == 90
    assert len(server.requests) == 1


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, PermissionRefused),
        (403, PermissionRefused),
        (404, NotThere),
        (400, ApiRefused),
        (409, ApiRefused),
    ],
)
def test_a_refusal_says_what_and_which_request(status: int, kind: type[FlowError]) -> None:
    server = Server(reply(status, {"detail": "because"}, **{"X-Request-Id": "req-7"}))
    with pytest.raises(kind, match=r"because .*GET /v2/x.*req-7"):
        server.api().get("/v2/x")
    assert len(server.requests) == 1


def test_without_an_id_of_the_server_ours_is_named() -> None:
    server = Server(reply(400, {"detail": "no"}))
    with pytest.raises(ApiRefused) as caught:
        server.api().get("/v2/x")
    assert server.requests[0].headers["X-Request-Id"] in str(caught.value)


def test_wrong_fields_are_named() -> None:
    detail = [
        {"loc": ["body", "limit_price"], "msg": "not a price", "type": "value_error"},
        {"loc": ["body", "launch_specification", "volumes"], "msg": "missing", "type": "missing"},
    ]
    with pytest.raises(
        ApiRefused, match=r"limit_price: not a price; launch_specification\.volumes: missing"
    ):
        Server(reply(422, {"detail": detail})).api().post("/v2/spot/bids", {})


def test_quotas_are_told_from_other_refusals() -> None:
    with pytest.raises(QuotaExceeded, match="quota"):
        Server(reply(400, {"detail": "Spot quota exceeded"})).api().post("/v2/spot/bids", {})


def test_deleting_what_is_not_there_is_no_error() -> None:
    assert Server(reply(404, {"detail": "not found"})).api().delete("/v2/x") is False
    assert Server(reply(204)).api().delete("/v2/x") is True


PAGE = "<html>\n<h1>Please log in</h1>\n</html>"


@pytest.mark.parametrize("method", ["get", "delete"])
@pytest.mark.parametrize("status", [200, 302, 307, 403, 404])
def test_a_page_of_a_proxy_is_no_answer_of_the_api(method: str, status: int) -> None:
    """Least of all that a bid is not there. A launch waits for the API then, and goes on."""
    server = Server(httpx.Response(status, text=PAGE))
    with pytest.raises(Unreachable, match=r"https://api\.example"):
        getattr(server.api(), method)("/v2/spot/bids/bid_1")


@pytest.mark.parametrize("status", [200, 302, 307, 403, 404])
def test_what_a_proxy_says_to_a_post_is_to_be_looked_up(status: int) -> None:
    server = Server(httpx.Response(status, text=PAGE))
    with pytest.raises(OutcomeUnknown):
        server.api().post("/v2/spot/bids", {})
    assert len(server.requests) == 1


@pytest.mark.parametrize("where", [None, "body", [], 7])
def test_wrong_fields_without_a_place_are_told(where: object) -> None:
    detail = [{"loc": where, "msg": "not a price"}]
    with pytest.raises(ApiRefused, match="not a price"):
        Server(reply(422, {"detail": detail})).api().post("/v2/spot/bids", {})


# The key


def test_no_error_and_no_log_has_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    other = "fkey_made-for-a-node"
    answers = [
        reply(400, {"detail": f"bad key {SECRET} or {other}"}),
        reply(401, {"detail": f"Bearer {SECRET}"}),
        httpx.ReadTimeout(f"while sending {SECRET}"),
        httpx.Response(502, text=f"<html>{SECRET}</html>"),
    ]
    said = []
    for answer in answers:
        with pytest.raises(ProviderError) as caught:
            Server(answer).api().post("/v2/api-keys", {"name": "x"})
        said.append(str(caught.value) + repr(caught.value) + repr(caught.value.__cause__))
    Server(reply(201, {"secret": other})).api().post("/v2/api-keys", {})
    text = "\n".join([*said, caplog.text, repr(Key(SECRET, "x"))])
    assert SECRET not in text
    assert other not in text
    assert "fkey_…" in text
    assert "POST /v2/api-keys: 201" in caplog.text, "there is a log at all"


def test_a_key_of_the_environment_is_replaced_in_a_process_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = {SECRET}

    def answer(request: Any) -> Any:
        known = request.headers["Authorization"].removeprefix("Bearer ") in valid
        return reply(200, {"fid": "user_1"}) if known else reply(401, {"detail": "no"})

    monkeypatch.setenv("MITHRIL_API_KEY", SECRET)
    server = Server(answer)
    settings = ProviderSettings("mithril", {"api_url": "https://api.example"})
    account = Account(tmp_path, settings, httpx.MockTransport(server))
    assert account.api.get("/v2/me")
    valid.clear()
    with pytest.raises(PermissionRefused, match=r"MITHRIL_API_KEY.*keys/mithril of FLOW_HOME"):
        account.api.get("/v2/me")
    valid.add("fkey_new")
    key_file(tmp_path, "fkey_new")
    assert account.api.get("/v2/me")
    # The variable is the first choice of a process that starts now, also if what it has was never right.
    fresh = Account(tmp_path, settings, httpx.MockTransport(server))
    with pytest.raises(PermissionRefused, match="MITHRIL_API_KEY"):
        fresh.api.get("/v2/me")


def key_file(home: Path, key: str) -> None:
    (home / "keys").mkdir(mode=0o700)
    with open(home / "keys" / "mithril", "x", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        file.write(key)


def test_the_client_brings_no_terminal_along() -> None:
    code = (
        "import sys; from provider_adapters.mithril.rest.client import import_httpx; import_httpx().Client();"
        "print([m for m in ('rich', 'click', 'pygments', 'typer', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
