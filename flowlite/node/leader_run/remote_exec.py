"""Runs a command on another node of the gang.

    code = call(GangContext.read(directory), 1, ["hostname"])        its output goes to ours
    output = ask(GangContext.read(directory), 1, ["hostname"])       its output, as bytes

The command gets the environment of that node's worker, and starts in the worker's directory. It ends when its caller
does.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..protocol.framing import WireError
from ..protocol.mux_framing import BLOCK, DONE, END, ERR, IN, OPEN, OUT
from ..system import atomic_files
from .context import GangContext, Unreachable
from .exec_framing import Frames, frames_through

Sink = Callable[[bytes], object]
_OUR_OUTPUT: Sink = functools.partial(atomic_files.write, 1)
_OUR_ERRORS: Sink = functools.partial(atomic_files.write, 2)


class CommandFailed(OSError):
    """A command on another node failed; the text says how, with the end of its output."""


def call(
    place: GangContext,
    node: int,
    argv: Sequence[str],
    *,
    out: Sink = _OUR_OUTPUT,
    err: Sink = _OUR_ERRORS,
    source: int | None = None,
) -> int:
    """Runs a command on a node until it ends. Returns its exit code, negative for a signal.

    Args:
        out: Called with each piece of its standard output, which else goes to ours.
        err: The same for standard error.
        source: Descriptor for its standard input; None for none.

    Raises:
        Unreachable: It cannot be started; the text says why.
    """
    stream = place.dial("call", node=node)
    with stream.network:
        stream.go_on()
        try:
            told = json.loads(stream.read_line())
        except (OSError, WireError, ValueError) as error:
            raise Unreachable(f"node {node} cannot be asked: {error}") from error
        if "error" in told:
            raise Unreachable(str(told["error"]))
        with frames_through(stream) as frames:
            frames.send(OPEN, json.dumps({"argv": list(argv)}).encode())
            threading.Thread(target=_feed, args=(source, frames), daemon=True).start()
            code = _answers(frames, out, err)
    if code is None:
        raise Unreachable(f"node {node} was lost while it ran the command")
    return code


def _answers(frames: Frames, out: Sink, err: Sink) -> int | None:
    """Forwards a command's output. Returns its exit code, or None if none was received."""
    for kind, body in frames:
        if kind == OUT:
            out(body)
        elif kind == ERR:
            err(body)
        elif kind == DONE:
            end = json.loads(body)
            if "text" in end:
                raise Unreachable(str(end["text"]))
            return int(end["code"])
    return None


def ask(place: GangContext, node: int, argv: Sequence[str]) -> bytes:
    """Returns a command's standard output. Raises Unreachable, CommandFailed."""
    out, err = bytearray(), bytearray()
    code = call(place, node, argv, out=out.extend, err=err.extend)
    if code:
        said = err.decode(errors="replace").strip()[-1000:]
        raise CommandFailed(f"{argv[0]} on node {node} ended with {code}: {said}")
    return bytes(out)


def _feed(source: int | None, frames: Frames) -> None:
    # A broken connection is detected by the reader of the answers.
    with suppress(OSError):
        if source is not None:
            while data := os.read(source, BLOCK):
                frames.send(IN, data)
        frames.send(END)
