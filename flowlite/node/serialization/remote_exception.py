"""Makes a worker's exception portable: always as text, and as an exception object where that works.

There are four forms. The first three are tried out in the worker before they are used:

1. a pickle that loads as the same type with the same text;
2. a rebuild without `__init__`: `cls.__new__(cls, *args)`, its `args`, and the picklable part of its `__dict__`. This
   is for classes whose `__init__` takes other arguments than `args` holds, or which hold a lock or a socket. It comes
   second because it loses what C classes keep outside of both (the file name of FileNotFoundError, the object of
   UnicodeDecodeError);
3. for a group, its message and its members, each in its own form. One that has none keeps its type if it can be
   pickled at all, such as one with an address in its text; of the others, the text is left;
4. only the text, from which the client makes a `RemoteError`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from ..quick_dataclass import dataclass
from . import pickling
from .safe_base import type_name

_LONGEST_MESSAGE = 64 * 1024
_LONGEST_TRACEBACK = 256 * 1024
_LONGEST_ARGUMENT = 1000
# An exception larger than this (with a tensor in its arguments, say) is sent as text.
_LARGEST_PICKLE = 16 * 1024 * 1024


@dataclass(frozen=True)
class Summary:
    """An exception as text."""

    type: str
    message: str
    traceback: str


def summarise(error: BaseException) -> Summary:
    """Returns the text of an exception. This works for every exception, even if its own methods fail."""
    return Summary(
        type_name(error),
        _cut(text_of(error), _LONGEST_MESSAGE),
        _cut(_formatted(error), _LONGEST_TRACEBACK),
    )


def text_of(error: BaseException) -> str:
    """Returns `str(error)`, or a note on why that failed."""
    try:
        return str(error)
    except Exception as inner:
        return f"<its text cannot be made: {type(inner).__name__}>"


def _texts_of(error: BaseException) -> list[str]:
    """Returns the text of an exception and, of a group, those of all members."""
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [text_of(error), *(text for each in members for text in _texts_of(each))]


def portable(error: BaseException) -> tuple[str, bytes] | None:
    """Returns ("pickle" | "group" | "rebuild", pickle), or None if only the text can be sent."""
    for form, content, exact in _forms(error):
        try:
            stream = pickling.dumps(content, in_one_piece=True).joined()
            if len(stream) > _LARGEST_PICKLE:
                continue
            copy = restore(form, stream)
            # The members of a "group" have been tried out by themselves. Those that cannot be rebuilt have other texts.
            most = 1 if form == "group" else None
            same = _texts_of(copy)[:most] == _texts_of(error)[:most]
            if type(copy) is type(error) and (not exact or same):
                return form, stream
        except Exception:
            # The class's own methods may raise anything; the next form may work.
            continue
    return None


def restore(form: str, stream: bytes | memoryview) -> BaseException:
    """Restores the exception that `portable` returned as (form, stream). Raises any exception of its class."""
    content = pickling.loads(stream)
    if form == "group":
        cls, message, members, state = content
        content = cls.__new__(cls, message, [_restore_member(*each) for each in members])
        content.__dict__.update(state)
    elif form == "rebuild":
        cls, args, state = content
        content = cls.__new__(cls, *args)
        content.args = args
        content.__dict__.update(state)
    if not isinstance(content, BaseException):
        raise TypeError(f"not an exception but {type_name(content)}")
    return content


class LostException(Exception):
    """A member of a group that could not be rebuilt, as text."""


def _restore_member(form: str, stream: bytes, text: str) -> BaseException:
    try:
        return restore(form, stream) if form else LostException(text)
    except Exception:
        return LostException(text)


def _forms(error: BaseException) -> Iterator[tuple[str, Any, bool]]:
    """Yields the forms to try: form, content, and whether the text must be the same afterwards."""
    yield "pickle", error, True
    if isinstance(error, BaseExceptionGroup):
        members = [
            (*(portable(each) or _pickled(each)), f"{type_name(each)}: {text_of(each)}")
            for each in error.exceptions
        ]
        state = {name: item for name, item in vars(error).items() if _travels(item)}
        yield "group", (type(error), error.message, members, state), True
    travels = [_travels(item) for item in error.args]
    # An argument that cannot be pickled is replaced by its text: the exception's type is worth more than an exact
    # message.
    args = tuple(
        item if fits else _cut(repr(item), _LONGEST_ARGUMENT)
        for item, fits in zip(error.args, travels, strict=True)
    )
    state = {name: item for name, item in vars(error).items() if _travels(item)}
    yield "rebuild", (type(error), args, state), all(travels)


def _pickled(error: BaseException) -> tuple[str, bytes]:
    """Returns a pickle that loads as the same type, perhaps with another text; ("", b"") if there is none."""
    with suppress(Exception):
        stream = pickling.dumps(error, in_one_piece=True).joined()
        if len(stream) <= _LARGEST_PICKLE and type(restore("pickle", stream)) is type(error):
            return "pickle", stream
    return "", b""


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
            type(error), error, without_own_head(error.__traceback__), compact=True
        )
        _drop_own_frames(summary)
        return "".join(summary.format())
    except Exception as inner:
        return f"{type_name(error)}: {text_of(error)}\n<its traceback cannot be made: {type(inner).__name__}>\n"


def without_own_head(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback from the first frame that is not flowlite's."""
    while trace is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _drop_own_frames(summary: traceback.TracebackException) -> None:
    """Removes flowlite's frames from the exception, its causes and contexts, and the members of a group."""
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


# Taken from a code object, since frames name the same; inside the zip it differs from the directory of `__file__`.
_OWN_DIRECTORY = os.path.dirname(os.path.dirname(_is_own.__code__.co_filename))


def _cut(text: str, longest: int) -> str:
    """Shortens a text to its beginning and end if it is too long. Secrets are masked by these words, too."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
