"""Checks a call against its function's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowlite.errors import ArgumentError
from flowlite.in_worker.signatures import signature_of
from flowlite.node.serialization.pickling import unwrap
from flowlite.settings.suggest import did_you_mean

_LONGEST = 300
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def function_name(fn: Callable[..., Any]) -> str:
    """The name of a function for messages, without its module."""
    fn = getattr(fn, "func", fn) if not hasattr(fn, "__qualname__") else fn
    return str(getattr(fn, "__qualname__", type(fn).__qualname__)).rpartition("<locals>.")[2]


def bind(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments | None:
    """Checks a call against the function's signature.

    Returns:
        The bound arguments (defaults not applied), or None if the function has no readable signature (some built-ins).

    Raises:
        ArgumentError: The call does not fit. The message has the signature, and the most similar name for an unknown
            keyword.
    """
    fn = unwrap(fn)
    try:
        signature = signature_of(fn)
    except (ValueError, TypeError):
        return None
    name = function_name(fn)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        problem, hint = f"{error}", ""
    named = [p.name for p in signature.parameters.values() if p.kind in _BY_NAME]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    # A misspelt keyword is reported first, since it may be why another argument is missing.
    for keyword in () if takes_any else kwargs:
        if keyword not in named:
            problem = f"got an unexpected keyword argument {keyword!r}"
            hint = did_you_mean(keyword, named)
            break
    whole = f"{name}{signature}"
    shown = whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}..."
    raise ArgumentError(
        f"{name}() {problem}{hint}{' Its' if hint else '; its'} signature is {shown}"
    )
