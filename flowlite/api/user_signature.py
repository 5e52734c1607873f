"""Shows the user's own signature on methods that take the arguments of the user's function."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from flowlite.in_worker.signatures import signature_of

M = TypeVar("M", bound=Callable[..., Any])

# How methods annotate that they return what the user's function returns.
_OF_USER = ("R", "Any")


class _Method:
    """A method whose signature is that of the function in `instance.__wrapped__`, for `inspect`, `help()` and IDEs."""

    def __init__(self, method: types.FunctionType) -> None:
        self.__doc__ = method.__doc__
        self._method = method

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self._method
        with suppress(ValueError, TypeError):
            shown = _signature(instance.__wrapped__, self._method)
            return types.MethodType(_copy(self._method, shown), instance)
        return types.MethodType(self._method, instance)


def takes_the_users_arguments(method: M) -> M:
    """Decorates a method that takes the arguments of the user's function, which is the instance's `__wrapped__`."""
    return cast("M", _Method(cast("types.FunctionType", method)))


def _signature(user: Callable[..., Any], method: types.FunctionType) -> inspect.Signature:
    """The method's `self`, the user's parameters, and what the method returns."""
    own, theirs = inspect.signature(method), signature_of(user)
    # Binding drops the first parameter, whose name must not be one of the user's.
    itself = inspect.Parameter("__self", inspect.Parameter.POSITIONAL_ONLY)
    result = own.return_annotation
    if result in _OF_USER:
        result = theirs.return_annotation
    return inspect.Signature([itself, *theirs.parameters.values()], return_annotation=result)


def _copy(method: types.FunctionType, signature: inspect.Signature) -> types.FunctionType:
    """The same function with another `__signature__`, so that it is still a function, or a coroutine function."""
    copy = types.FunctionType(
        method.__code__,
        method.__globals__,
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
    functools.update_wrapper(copy, method)
    copy.__kwdefaults__ = method.__kwdefaults__
    copy.__signature__ = signature  # type: ignore[attr-defined]
    return copy
