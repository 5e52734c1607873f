"""`notify=`: who is told, of what, in bounded time, and nobody is shown the keys of a target."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite import Flow, TaskConfig
from flowlite.api.session import open_session
from flowlite.errors import ConfigError, SpecError
from flowlite.notify.sending import Message, NotSent, readable, send
from flowlite.notify.targets import Kind, keys_in, kind_of, shown
from flowlite.state.store import Store
from flowlite.supervise.process import notifications
from flowlite.supervise.process.notifications import message_of
from flowlite.supervise.record.paths import TaskPaths
from flowlite.terminal import UNSAFE
from tests.helpers import eventually
from tests.tasks_made_by_hand import HandMade
from tests.test_store import task

KEY = "B0K3YOFTHEHOOK99"


class Hook:
    """A webhook on this machine, and what it was sent."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append(json.loads(body))
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/{KEY}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.close()


def told(task_id: str) -> list[str]:
    """What the history of a task says of its notifications, once it says something."""

    def said() -> list[str]:
        events = open_session().store.events(task_id)
        return [event.text for event in events if "notified" in event.text]

    return eventually(said)


def test_a_webhook_is_told_of_the_end(flow_home: Path, hook: Hook) -> None:
    task = Flow().run(TaskConfig(command=["true"], name="digits", notify=hook.url), wait=True)
    host = hook.url.partition("/services")[0]
    assert told(task.id) == [f"notified {host}/*** of: completed"]
    (body,) = hook.got
    assert body["event"] == "completed"
    assert body["text"] == body["content"]
    assert body["text"].startswith(f"task digits ({task.id}) completed")
    assert body["task"]["status"] == "completed"
    assert body["task"]["finished_at"] >= body["task"]["started_at"]


def test_a_webhook_is_told_whatever_no_proxy_says_of_other_hosts(
    flow_home: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1,::1/128,[::1]")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1,::1/128,[::1]")
    task = Flow().run(TaskConfig(command=["true"], notify=hook.url), wait=True)
    assert told(task.id)[0].startswith("notified ")
    assert len(hook.got) == 1


def test_a_failure_that_is_retried_and_the_last_one_are_told(flow_home: Path, hook: Hook) -> None:
    config = TaskConfig(command=["sh", "-c", "exit 3"], retries=1, notify=[hook.url])
    task = Flow().run(config, wait=True)
    eventually(lambda: len(hook.got) == 2)
    assert [body["event"] for body in hook.got] == ["retrying", "failed"]
    for body in hook.got:
        assert "exited with 3" in body["text"]
        assert "exited with 3" in body["task"]["reason"]
    assert task.status == "failed"


def test_the_next_event_waits_until_the_one_before_has_been_told(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The first one takes three seconds, unless the second one begins meanwhile.
    slow = "for _ in $(seq 30); do grep -q failed said && break; sleep 0.1; done"
    command = (
        f'echo "$FLOW_NOTIFY_EVENT" >> said; [ "$FLOW_NOTIFY_EVENT" = failed ] || {{ {slow}; }}; '
        'echo "told $FLOW_NOTIFY_EVENT" >> said'
    )
    task = Flow().run(
        TaskConfig(command=["sh", "-c", "exit 3"], retries=1, notify=command), wait=True
    )
    assert task.status == "failed"
    file = tmp_path / "said"
    eventually(lambda: file.exists() and "told failed" in file.read_text())
    said = file.read_text().splitlines()
    assert said == ["retrying", "told retrying", "failed", "told failed"]


def test_a_cap_is_told_as_one(flow_home: Path, hook: Hook) -> None:
    config = TaskConfig(
        command=["sleep", "60"], notify=hook.url, max_run_time_hours=1 / 3600, grace_seconds=1
    )
    task = Flow().run(config, wait=True)
    eventually(lambda: hook.got)
    assert hook.got[0]["event"] == "cap"
    assert task.status == "failed"


def test_a_command_gets_the_message_where_it_was_submitted(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = 'cat > told.json; printf %s "$FLOW_NOTIFY_EVENT" > event'
    task = Flow().run(TaskConfig(command=["true"], notify=command), wait=True)
    assert told(task.id) == ["notified cat *** of: completed"]
    assert json.loads((tmp_path / "told.json").read_text())["task"]["id"] == task.id
    assert (tmp_path / "event").read_text() == "completed"


def test_what_goes_wrong_harms_nothing_and_is_told(flow_home: Path, hook: Hook) -> None:
    hook.status = 500
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/{KEY}"
        targets = [hook.url, nobody, f"echo {KEY} is wrong >&2; exit 7"]
        task = Flow().run(TaskConfig(command=["true"], notify=targets), wait=True)
        assert task.status == "completed"
        eventually(lambda: len(told(task.id)) == 3)
    first, second, third = told(task.id)
    assert first.endswith(
        "/*** was not notified of: completed (it answered 500 Internal Server Error)"
    )
    assert "Connect" in second
    assert "it ended with 7: *** is wrong" in third
    assert KEY not in first + second + third


def test_all_targets_are_told_of_a_task_that_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, paths = Store(tmp_path / "state.db"), TaskPaths(tmp_path, "t1")
    sent: list[str] = []
    store.create_task(task("t1", state="completed"))
    paths.directory.mkdir(parents=True)
    notifications.keep_targets(paths, ["one", "two"], "/")

    def send(target: str, *_: object) -> None:
        sent.append(target)
        store.delete_task("t1")

    monkeypatch.setattr(notifications, "send", send)
    notifications.notify(store, paths, "completed")
    assert sent == ["one", "two"]


def test_keys_are_shown_nowhere(flow_home: Path, hook: Hook) -> None:
    config = TaskConfig(command=["true"], notify=[hook.url, f"tell --token {KEY}"])
    assert KEY not in config.to_json()
    assert KEY not in repr(config)
    task = Flow().run(config, wait=True)
    told(task.id)
    session = open_session()
    for path in [*session.paths(task.id).directory.rglob("*"), session.home / "state.db"]:
        if path.is_file() and path.name != "notify.json":
            assert KEY.encode() not in path.read_bytes(), path
    assert session.paths(task.id).notify.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("target", ["", 3, ["ok", None], "https://", "a\0b"])
def test_a_target_that_is_none_is_refused(target: Any) -> None:
    with pytest.raises(SpecError, match="notify"):
        TaskConfig(notify=target)


def test_without_the_library_it_is_refused_before_anything_is_submitted(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install apprise"):
        Flow().run(TaskConfig(command=["true"], notify=f"slack://{KEY}/x"))
    assert Flow().list_tasks() == []


# One notification


MESSAGE = Message("completed", "a title", "a text", {"id": "t1"})


def test_apprise_sends(hook: Hook, tmp_path: Path) -> None:
    """The real library, to a webhook of this machine."""
    pytest.importorskip("apprise")
    send(hook.url.replace("http://", "json://"), MESSAGE, tmp_path)
    assert (hook.got[0]["title"], hook.got[0]["message"]) == ("a title", "a text")
    with pytest.raises(NotSent, match="does not know"):
        send("nonsense://x", MESSAGE, tmp_path)
    hook.status = 500
    with pytest.raises(NotSent, match="could not send"):
        send(hook.url.replace("http://", "json://"), MESSAGE, tmp_path)


def test_apprise_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(NotSent, match="the library apprise is not installed here"):
        send("json://127.0.0.1:1", MESSAGE, tmp_path)


def test_the_end_of_a_task_is_told_by_apprise(flow_home: Path, hook: Hook) -> None:
    pytest.importorskip("apprise")
    target = hook.url.replace("http://", "json://")
    task = Flow().run(TaskConfig(name="digits", command=["sh", "-c", "exit 3"], notify=target))
    task.wait(60, show_logs=False)
    eventually(lambda: hook.got)
    assert "digits" in hook.got[0]["title"]
    assert "failed" in hook.got[0]["title"] + hook.got[0]["message"]


HOSTILE = "it broke\0 \x1b]0;TITLE\x07\x1b[2J \u202e " + "x" * 1000
"""What a node may say of its end."""


@pytest.mark.usefixtures("flow_home")
def test_what_a_node_says_keeps_nobody_from_being_told(hook: Hook, tmp_path: Path) -> None:
    made = HandMade()
    made.end("failed", HOSTILE)
    message = message_of(made.store.get_task(made.id), "failed")
    told = tmp_path / "told"
    send(f'printf %s "$FLOW_NOTIFY_TEXT" > {told}', message, tmp_path)
    send(hook.url, message, tmp_path)
    for text in (told.read_text(), hook.got[0]["text"], hook.got[0]["task"]["reason"]):
        assert "it broke" in text
        assert UNSAFE.search(text) is None


def test_half_a_character_is_sent_as_a_question_mark(hook: Hook, tmp_path: Path) -> None:
    message = Message("failed", readable("a\ud800"), readable("b\udcff"), {})
    told = tmp_path / "told"
    send(f'printf %s "$FLOW_NOTIFY_TITLE$FLOW_NOTIFY_TEXT" > {told}', message, tmp_path)
    send(hook.url, message, tmp_path)
    assert (told.read_text(), hook.got[0]["text"]) == ("a?b?", "b?")


def test_an_answer_without_end_is_not_read(tmp_path: Path) -> None:
    sent = 0

    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal sent
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    sent += self.wfile.write(bytes(1 << 20))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        send(f"http://127.0.0.1:{server.server_port}/", MESSAGE, tmp_path)
        assert sent < 64 << 20
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("what", ["server", "command"])
def test_nobody_is_waited_for_longer_than_that(tmp_path: Path, what: str) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        target = server if what == "server" else "trap '' TERM; sleep 300 & sleep 300"
        with pytest.raises(NotSent):
            send(target, MESSAGE, tmp_path, seconds=0.5)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", Kind.WEBHOOK, "https://hooks.slack.com/***"),
        ("https://user:word@example.org:8443/", Kind.WEBHOOK, "https://example.org:8443/***"),
        ("http://example.org", Kind.WEBHOOK, "http://example.org"),
        ("slack://TokenA/TokenB/", Kind.APPRISE, "slack://***"),
        ("mailto://me:word@example.org", Kind.APPRISE, "mailto://***"),
        ("notify-send done", Kind.COMMAND, "notify-send ***"),
        ("./tell.sh", Kind.COMMAND, "./tell.sh"),
        ("TOKEN=xoxb-1234567 ./tell.sh", Kind.COMMAND, "./tell.sh ***"),
        ("A=1 TOKEN='xoxb 123' ./tell.sh x", Kind.COMMAND, "./tell.sh ***"),
        ("curl\thttps://example.org/key", Kind.COMMAND, "curl ***"),
        ("curl \\\n https://example.org/key", Kind.COMMAND, "curl ***"),
        ("TOKEN=xoxb-1234567", Kind.COMMAND, "***"),
    ],
)
def test_targets_are_shown_without_keys(target: str, kind: Kind, said: str) -> None:
    assert (kind_of(target), shown(target)) == (kind, said)


@given(
    st.sampled_from(["https", "http", "slack", "tgram"]),
    st.from_regex(r"[A-Za-z0-9_-]{8,30}", fullmatch=True),
    st.sampled_from(
        [
            *("{s}://example.org/a/{k}", "{s}://u:{k}@example.org/", "{s}://example.org/?t={k}"),
            *(
                "{s} {k}",
                "{s}\t{k}",
                "A={k} {s}",
                "A='{k}' {s}",
                'A="a {k}" B=1 {s} x',
                "A={k} {s} '",
            ),
        ]
    ),
)
def test_no_key_is_shown(scheme: str, key: str, form: str) -> None:
    target = form.format(s=scheme, k=f"Q9{key}")
    assert key not in shown(target)
    assert any(key in each for each in keys_in(target))
    if kind_of(target) is Kind.COMMAND:
        # A program that fails says the value alone.
        assert {f"Q9{key}", f"a Q9{key}"} & {*keys_in(target)}
