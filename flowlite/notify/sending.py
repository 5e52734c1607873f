"""Sends one notification to one target, within a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.notify.targets import Kind, kind_of
from flowlite.settings.http_proxy import proxy_for
from flowlite.terminal import plain

SECONDS = 20.0
_LONGEST_SAID = 300


class NotSent(Exception):
    """A notification was not delivered. The message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """The contents of a notification.

    Attributes:
        event: "completed", "failed", "cancelled", "cap" or "retrying".
        title: One line, `readable`.
        text: What happened, in a sentence, `readable`.
        task: The task as JSON.
    """

    event: str
    title: str
    text: str
    task: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        """Returns the JSON for webhooks and commands. Slack and Mattermost show `text`, Discord shows `content`."""
        return {
            "event": self.event,
            "title": self.title,
            "text": self.text,
            "content": self.text,
            "task": dict(self.task),
        }


def readable(text: str) -> str:
    """Makes a text that a node may have written safe to send: every program can take it, and no terminal obeys it."""
    return plain(text).encode("utf-8", "replace").decode()


def send(target: str, message: Message, directory: Path, *, seconds: float = SECONDS) -> None:
    """Sends a message to a target. Never takes longer than the time limit.

    Args:
        target: A command, the URL of a webhook, or a URL of Apprise.
        directory: Working directory of a command.
        seconds: The time limit.

    Raises:
        NotSent: The message was not delivered, or it is not known whether it was.
    """
    kind = kind_of(target)
    if kind is Kind.COMMAND:
        _run(target, message, directory, seconds)
        return
    way = _post if kind is Kind.WEBHOOK else _by_apprise
    problems: list[str] = []

    def attempt() -> None:
        try:
            way(target, message, seconds)
        except NotSent as error:
            problems.append(str(error))
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")

    # A thread, because a server that sends a byte now and then defeats the timeout of an HTTP client.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise NotSent(f"no answer within {seconds:g} s")
    if problems:
        raise NotSent(problems[0])


def _post(target: str, message: Message, seconds: float) -> None:
    import httpx

    headers = {"Content-Type": "application/json"}
    content = json.dumps(message.body())
    _, proxy = proxy_for(target)
    transport = httpx.HTTPTransport(proxy=httpx.Proxy(proxy) if proxy else None)
    # The body of the answer is not read: it may have no end.
    with (
        httpx.Client(transport=transport, timeout=seconds) as client,
        client.stream("POST", target, content=content, headers=headers) as answer,
    ):
        if not answer.is_success:
            raise NotSent(f"it answered {answer.status_code} {answer.reason_phrase}".rstrip())


def _by_apprise(target: str, message: Message, seconds: float) -> None:
    try:
        import apprise
    except ImportError:
        raise NotSent("the library apprise is not installed here") from None

    service = apprise.Apprise()
    if not service.add(target):
        raise NotSent("apprise does not know this URL")
    if not service.notify(title=message.title, body=message.text):
        raise NotSent("apprise could not send it")


def _run(target: str, message: Message, directory: Path, seconds: float) -> None:
    """Runs a shell command with the message as JSON on standard input, and its parts in variables."""
    environment = {
        **os.environ,
        "FLOW_NOTIFY_EVENT": message.event,
        "FLOW_NOTIFY_TITLE": message.title,
        "FLOW_NOTIFY_TEXT": message.text,
    }
    # Imported here, since every supervisor imports this module.
    import tempfile

    with tempfile.TemporaryFile() as said:
        program = subprocess.Popen(
            ["sh", "-c", target],
            cwd=directory if directory.is_dir() else "/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            with suppress(BrokenPipeError):
                program.communicate(json.dumps(message.body()).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            raise NotSent(f"it was killed after {seconds:g} s") from None
        code = program.wait()
        if code:
            said.seek(0, os.SEEK_END)
            said.seek(max(0, said.tell() - _LONGEST_SAID))
            words = " ".join(said.read().decode("utf-8", "replace").split())
            raise NotSent(f"it ended with {code}" + (f": {words}" if words else ""))
