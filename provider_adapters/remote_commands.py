"""Runs commands on the machines of providers; their time-outs and failures are errors in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowlite.errors import NodeUnreachable

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.connect.values import Completed

_LONGEST_SAID = 300


def run(
    connection: Connection, argv: Sequence[str], seconds: float, *, input: bytes = b""
) -> Completed:
    """Runs a command. Raises NodeUnreachable, also if it takes longer than that."""
    try:
        return connection.run(argv, input=input, timeout=seconds)
    except TimeoutError as error:
        raise NodeUnreachable(f"it runs nothing within {seconds:.0f} s") from error


def said(done: Completed) -> str:
    """What a command that has failed said last, or its exit code."""
    text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return text[-_LONGEST_SAID:] or f"exit code {done.code}"
