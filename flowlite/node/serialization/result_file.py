"""The result file of a worker: a plain value, a pickle, or an exception.

The file is an envelope (`envelope.py`) whose header says "kind": "plain", "pickle" or "exception". A reader that allows
no pickles gets plain values, and exceptions as text; such a file then cannot run code.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..quick_dataclass import dataclass
from . import pickling, remote_exception, safe
from .envelope import EnvelopeError, open_envelope, write_envelope

PYTHON = list(sys.version_info[:2])
FORMAT = 3
"""Of values."""


class OutcomeError(Exception):
    """The file is missing, truncated, damaged, or of a form that the reader refuses."""


class ResultError(Exception):
    """The value cannot be sent back; failure kind "result". The message names the rank and the type."""


@dataclass
class OutcomeFile:
    """The content of a result file.

    Attributes:
        kind: "value", "exception", "load" or "result".
        value: For kind "value".
        exception: The restored exception, or None if that failed or pickles were refused.
        type: Qualified type name of the exception.
        message: Its text.
        traceback: Its formatted traceback, without flowlite's frames.
        raised_by: (node, rank) that raised it, as far as the file says. Under `mpirun` it is another rank than the one
            whose file this is.
    """

    kind: str
    value: Any = None
    exception: BaseException | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    raised_by: tuple[int, int] | None = None


def write_value(
    path: str | os.PathLike[str], value: Any, policy: str = "any", *, node: int = 0, rank: int = 0
) -> None:
    """Writes the return value of the function.

    Args:
        path: The file; it appears once it is complete.
        value: Anything.
        policy: "plain" accepts only values that the plain form can hold; "any" pickles the others.
        node: For messages.
        rank: For messages.

    Raises:
        ResultError: The value cannot be sent back.
        OSError: The file cannot be written.
    """
    header: dict[str, Any] = {"format": FORMAT, "python": PYTHON}
    try:
        structure, buffers = safe.encode(value)
        plain = {**header, "kind": "plain"}
        write_envelope(path, plain, [[structure], *([each] for each in buffers)], sealed=True)
        return
    except safe.NotPlain as error:
        if policy == "plain":
            raise ResultError(_not_plain(value, error, node, rank)) from None
    try:
        pickled = pickling.dumps(value)
    except Exception as error:
        raise ResultError(_not_picklable(value, error, node, rank)) from error
    header |= {"kind": "pickle", "type": safe.type_name(value)}
    write_envelope(
        path, header, [pickled.stream, *([each] for each in pickled.buffers)], sealed=True
    )


def write_exception(
    path: str | os.PathLike[str],
    error: BaseException,
    *,
    node: int = 0,
    rank: int = 0,
    kind: str = "exception",
) -> dict[str, Any]:
    """Writes an exception. Returns the `failure` of the worker event: {"kind", "type", "message"}."""
    summary = remote_exception.summarise(error)
    header: dict[str, Any] = {
        "python": PYTHON,
        "kind": "exception",
        "failure": kind,
        "node": node,
        "rank": rank,
        "type": summary.type if kind == "exception" else type(error).__name__,
        "message": summary.message,
        "traceback": summary.traceback,
    }
    portable = remote_exception.portable(error) if kind == "exception" else None
    if portable is None:
        write_envelope(path, header, [], sealed=True)
    else:
        form, stream = portable
        write_envelope(path, {**header, "form": form}, [[stream]], sealed=True)
    return {"kind": kind, "type": header["type"], "message": summary.message}


def read_outcome(path: str | os.PathLike[str], *, allow_pickle: bool) -> OutcomeFile:
    """Reads a result file. Its hash is checked before anything is loaded. Raises `OutcomeError`."""
    try:
        envelope = open_envelope(path)
    except EnvelopeError as error:
        raise OutcomeError(str(error)) from None
    header, parts = envelope.header, envelope.parts
    kind = header.get("kind")
    if kind == "exception":
        return _read_exception(header, parts, allow_pickle)
    if kind not in ("plain", "pickle") or not parts:
        raise OutcomeError(f"{os.fspath(path)} is of an unknown kind ({kind!r})")
    if header.get("format") != FORMAT:
        raise OutcomeError(
            f"{os.fspath(path)} was written by another version of flowlite: read it with that version"
        )
    structure, buffers = parts[0], parts[1:]
    if kind == "plain":
        try:
            return OutcomeFile("value", safe.decode(structure, buffers))
        except safe.PlainError as error:
            raise OutcomeError(f"{os.fspath(path)} cannot be read: {error}") from None
    if not allow_pickle:
        raise OutcomeError(
            f"the result is a pickle (of type {header.get('type')}), and pickles are refused here; "
            "let the function return numbers, strings, bytes, containers of them, numpy arrays or tensors"
        )
    if header.get("python") != PYTHON:
        raise OutcomeError(
            f"the result was pickled by Python {dotted(header.get('python'))}, and this is Python {dotted(PYTHON)}: "
            f"read it with Python {dotted(header.get('python'))}"
        )
    try:
        return OutcomeFile("value", pickling.loads(structure, buffers))
    except Exception as error:
        raise OutcomeError(
            f"the result (of type {header.get('type')}) cannot be loaded here: {type(error).__name__}: {error}"
        ) from error


def _read_exception(
    header: dict[str, Any], parts: list[memoryview], allow_pickle: bool
) -> OutcomeFile:
    found = OutcomeFile(
        str(header.get("failure", "exception")),
        type=str(header.get("type", "")),
        message=str(header.get("message", "")),
        traceback=str(header.get("traceback", "")),
    )
    node, rank = header.get("node"), header.get("rank")
    if isinstance(node, int) and isinstance(rank, int):
        found.raised_by = (node, rank)
    if allow_pickle and parts and header.get("python") == PYTHON:
        try:
            found.exception = remote_exception.restore(str(header.get("form")), parts[0])
        except Exception:
            # Usually the class does not exist here; the text remains.
            found.exception = None
    return found


def dotted(version: Any) -> str:
    """Returns a version of Python in a header as text."""
    return ".".join(map(str, version)) if isinstance(version, list) else str(version)


def _not_plain(value: Any, error: safe.NotPlain, node: int, rank: int) -> str:
    where = f"; {error}" if error.place else (f" ({error.why})" if error.why else "")
    return (
        f"rank {rank} on node {node} returned a value of type {safe.type_name(value)}{where}, and this "
        'task asks for plain results (results="plain"): return numbers, strings, bytes, containers of '
        "them, numpy arrays or tensors"
    )


def _not_picklable(value: Any, error: Exception, node: int, rank: int) -> str:
    return (
        f"rank {rank} on node {node} returned a value of type {safe.type_name(value)}, which cannot be sent back "
        f"({type(error).__name__}: {error}): return data that can be pickled"
    )
