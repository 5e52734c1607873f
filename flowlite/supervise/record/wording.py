"""Describes in one line how an attempt or a worker ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from flowlite.node.system.signals import signal_name
from flowlite.provider.durations import duration as duration

_FIRST = "first failure: "
_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGKILL)
_HINTS = {
    "SIGKILL": "out of memory?",
    "SIGSEGV": "a crash in native code",
    "SIGBUS": "shared memory full?",
    "SIGABRT": "a check in native code failed",
}


def first_failure(body: Mapping[str, Any]) -> str:
    """Returns `first failure: node 2, rank 17: ValueError: no such layer`, from the report of a worker that ended."""
    return f"{_FIRST}node {body.get('node')}, rank {body.get('rank')}: {how_it_ended(body)}"


def after_cause(cause: str, seen: str) -> str:
    """Puts a cause that was learned later before its effect: `node 2 failed; what was seen here: ...`."""
    return f"{cause}; what was seen here: {seen.removeprefix(_FIRST)}"


def failed_by_itself(body: Mapping[str, Any]) -> bool:
    """Whether a worker failed without having been told to stop."""
    # Imported here because `flow status` imports this module, and importing messages takes 4 ms.
    from flowlite.node.protocol import messages

    return messages.failed(body) and not body.get("stopped")


def how_it_ended(body: Mapping[str, Any]) -> str:
    """Returns `ValueError: no such layer`, `killed by SIGKILL (out of memory?)` or `exited with 42`."""
    failure = body.get("failure") or {}
    kind, message = failure.get("kind"), str(failure.get("message") or "").strip()
    why = str(failure.get("why") or "")
    if kind == "exit":
        return (message or f"exited with {body.get('code')}") + (f" ({why})" if why else "")
    if kind != "signal" and (failure.get("type") or message):
        first_line = message.splitlines()[0] if message else ""
        return ": ".join(part for part in (str(failure.get("type") or ""), first_line) if part)
    number = body.get("signal")
    if number:
        return killed_by(int(number), why)
    return f"exited with {body.get('code')}"


def killed_by(number: int, why: str = "") -> str:
    """Returns `killed by SIGKILL (out of memory?)`: the signal, and why it came or the usual reason for it."""
    name = signal_name(number)
    reason = why or _HINTS.get(name)
    return f"killed by {name} ({reason})" if reason else f"killed by {name}"


def was_signalled(body: Mapping[str, Any]) -> bool:
    """Whether a worker was ended by SIGTERM or SIGKILL, or with the exit code of a shell for these."""
    return (body.get("signal") or int(body.get("code") or 0) - 128) in _FROM_OUTSIDE
