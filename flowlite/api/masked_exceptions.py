"""Masks the secrets of a task in the exceptions that its workers raised.

An exception shows its arguments, its attributes and notes, and for some classes of C (OSError, SyntaxError) values that
are kept outside of both. Its `__str__` may put any of them together. What still shows a secret after all these are
masked is replaced by a `RemoteError` with the masked text: the type of an exception is worth less than a secret.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from flowlite.errors import RemoteError, RemoteTraceback
from flowlite.node.serialization.remote_exception import text_of
from flowlite.node.serialization.safe_base import type_name
from flowlite.output.redact import Mask

# Deeper values are not looked into; the text of the exception is checked at the end in any case.
_DEEPEST = 20


def masked(error: Exception, mask: Mask) -> Exception:
    """Returns the exception, or one in its place, whose texts do not show a secret."""
    if not mask:
        return error
    _Masking(mask).mask(error, 0)
    if isinstance(error.__cause__, RemoteTraceback):
        error.__cause__ = RemoteTraceback(mask(error.__cause__.text), seen=error.__cause__.seen)
    if isinstance(error, RemoteError):
        error.remote_traceback = mask(error.remote_traceback)
    if not any(map(mask.finds, _texts(error))):
        return error
    instead = RemoteError(mask(text_of(error)), type_name=type_name(error))
    instead.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        instead.add_note(mask(str(note)))
    return instead


class _Masking:
    """Masks exceptions in place, with those that they hold."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._seen: set[int] = set()

    def mask(self, error: BaseException, depth: int) -> None:
        """Masks the arguments and attributes of an exception, and of the exceptions among them."""
        if id(error) in self._seen:
            return
        self._seen.add(id(error))
        # A class may refuse a change, or answer it with any exception.
        with suppress(Exception):
            error.args = self._value(error.args, depth)
        for name, value in [*vars(error).items(), *_own_values(error)]:
            new = self._value(value, depth)
            if new is not value:
                with suppress(Exception):
                    setattr(error, name, new)

    def _value(self, value: Any, depth: int) -> Any:
        """The value with the texts in it masked; the same object if there is nothing to mask."""
        if isinstance(value, BaseException):
            self.mask(value, depth + 1)
        if depth > _DEEPEST:
            return value
        if isinstance(value, str):
            return self._mask(value) if self._mask.finds(value) else value
        if isinstance(value, bytes):
            text = value.decode("utf-8", "surrogateescape")
            found = self._mask.finds(text)
            return self._mask(text).encode("utf-8", "surrogateescape") if found else value
        if type(value) in (list, tuple, set, frozenset):
            return self._container(value, depth)
        if type(value) is dict:
            items = [*value.items()]
            new = self._container(items, depth)
            return value if new is items else dict(new)
        return value

    def _container(self, value: Any, depth: int) -> Any:
        items = list(value)
        new = [self._value(each, depth + 1) for each in items]
        changed = any(one is not other for one, other in zip(new, items, strict=True))
        return type(value)(new) if changed else value


def _own_values(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yields what an exception keeps outside of `args` and its dictionary: slots, and attributes of classes of C."""
    for cls in type(error).__mro__:
        for name, attribute in vars(cls).items():
            if name.startswith("__") or not (
                inspect.ismemberdescriptor(attribute) or inspect.isgetsetdescriptor(attribute)
            ):
                continue
            with suppress(Exception):
                if name != "args":
                    yield name, getattr(error, name)


def _texts(error: BaseException) -> Iterator[str]:
    """Yields what a program shows of an exception: its text, its representation, and its traceback with notes."""
    yield text_of(error)
    with suppress(Exception):
        yield repr(error)
    with suppress(Exception):
        yield "".join(traceback.format_exception(error))
