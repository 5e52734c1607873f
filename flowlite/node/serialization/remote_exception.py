"""A worker's exception made portable: always as text, and as itself where that works.

Three steps, each tried in the worker before it is believed:

1. a pickle that comes back as the same type with the same text;
2. a rebuild without `__init__`: `cls.__new__(cls, *args)`, its `args` and what of its `__dict__` can be
   pickled. This is for classes whose `__init__` takes other arguments than `args` holds, or which hold a
   lock or a socket. It comes second because it loses what C classes keep outside of both (the file name of
   FileNotFoundError, the object of UnicodeDecodeError);
3. nothing but the text, from which the client makes a `RemoteError`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import pickling
from .safe_base import type_name

_LONGEST_MESSAGE = 64 * 1024
_LONGEST_TRACEBACK = 256 * 1024
# An exception that carries more than this (a tensor in its arguments, say) travels as text.
_LARGEST_PICKLE = 16 * 1024 * 1024


@dataclass(frozen=True)
class Summary:
    """An exception as text."""

    type: str
    message: str
    traceback: str


def summarise(error: BaseException) -> Summary:
    """The text of an exception; works for every exception, whatever its own methods do."""
    return Summary(
        type_name(error),
        _cut(text_of(error), _LONGEST_MESSAGE),
        _cut(_formatted(error), _LONGEST_TRACEBACK),
    )


def text_of(error: BaseException) -> str:
    """`str(error)`, or a note on why that failed."""
    try:
        return str(error)
    except Exception as inner:
        return f"<its text cannot be made: {type(inner).__name__}>"


def portable(error: BaseException) -> tuple[str, bytes] | None:
    """("pickle" | "rebuild", pickle), or None where only the text can travel."""
    text = text_of(error)
    for form, content, exact in _forms(error):
        try:
            stream = pickling.dumps(content, in_one_piece=True).joined()
            if len(stream) > _LARGEST_PICKLE:
                continue
            copy = restore(form, stream)
            if type(copy) is type(error) and (not exact or text_of(copy) == text):
                return form, stream
        except Exception:
            # Whatever the class's own methods raise, the next step may work.
            continue
    return None


def restore(form: str, stream: bytes | memoryview) -> BaseException:
    """The exception that `portable` gave as (form, stream); raises whatever its class raises."""
    content = pickling.loads(stream)
    if form == "rebuild":
        cls, args, state = content
        content = cls.__new__(cls, *args)
        content.args = args
        content.__dict__.update(state)
    if not isinstance(content, BaseException):
        raise TypeError(f"not an exception but {type_name(content)}")
    return content


def _forms(error: BaseException) -> Iterator[tuple[str, Any, bool]]:
    """What to try: form, content, and whether the text has to come back as it was."""
    yield "pickle", error, True
    travels = [_travels(item) for item in error.args]
    # An argument that cannot travel becomes its text: the type of the exception says more than the looks of
    # its message.
    args = tuple(
        item if fits else repr(item)[:1000] for item, fits in zip(error.args, travels, strict=True)
    )
    state = {name: item for name, item in vars(error).items() if _travels(item)}
    yield "rebuild", (type(error), args, state), all(travels)


def _travels(item: Any) -> bool:
    try:
        stream = pickling.dumps(item, in_one_piece=True).joined()
        if len(stream) > _LARGEST_PICKLE:
            return False
        pickling.loads(stream)
    except Exception:
        return False
    return True


def _formatted(error: BaseException) -> str:
    try:
        summary = traceback.TracebackException(
            type(error), error, _without_own_head(error.__traceback__), compact=True
        )
        _drop_own_frames(summary)
        return "".join(summary.format())
    except Exception as inner:
        return f"{type_name(error)}: {text_of(error)}\n<its traceback cannot be made: {type(inner).__name__}>\n"


def _without_own_head(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not ours."""
    while trace is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _drop_own_frames(summary: traceback.TracebackException) -> None:
    """Take our frames out of the exception, its causes and contexts, and the members of a group."""
    left, seen = [summary], set()
    while left:
        current = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        current.stack[:] = [frame for frame in current.stack if not _is_own(frame.filename)]
        left += [inner for inner in (current.__cause__, current.__context__) if inner is not None]
        left += current.exceptions or ()


def _is_own(filename: str) -> bool:
    return filename.startswith(_OWN_DIRECTORY + os.sep)


# Taken from a code object, since that is what frames name; inside the zip it is not the directory of `__file__`.
_OWN_DIRECTORY = os.path.dirname(os.path.dirname(_is_own.__code__.co_filename))


def _cut(text: str, longest: int) -> str:
    """Head and tail of a text that is too long."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
