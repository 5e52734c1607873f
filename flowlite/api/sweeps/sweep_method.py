"""`function.map` and `function.starmap`: one task per call, with a variant for event loops."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from typing import Any, Generic, TypeVar, overload

from flowlite.api.sweeps.sweep import Results, closed_at_exit
from flowlite.errors import SpecError
from flowlite.in_worker.on_node import refuse_on_a_node

A = TypeVar("A", contravariant=True)
R = TypeVar("R", covariant=True)
T = TypeVar("T")

DEFAULT_CONCURRENCY = 8


class SweepMethod(Generic[A, R]):
    """Runs one task per element and yields their results in the order of the elements.

    Call it: `for result in train.map([1, 2])`. `async for result in train.map.aio([1, 2])` does the same from an event
    loop.
    """

    def __init__(
        self,
        name: str,
        function: str,
        arguments_of: Callable[[Any], tuple[Any, ...]],
        start: Callable[[Iterable[tuple[Any, ...]], int, bool, bool], Generator[Any, None, None]],
    ) -> None:
        """
        Args:
            name: Name of the method.
            function: Name of the user's function.
            arguments_of: The arguments of the call that an element stands for. Raises SpecError.
            start: Given the calls, `max_concurrent`, `return_exceptions`, and whether to yield `PAUSE` in place of
                waiting: what starts the tasks and yields their results.
        """
        self.__name__ = name
        self.__doc__ = type(self).__call__.__doc__
        self._function = function
        self._arguments_of = arguments_of
        self._start = start

    def __get__(self, instance: object, owner: type | None = None) -> SweepMethod[A, R]:
        """Returns itself; `help()` takes what has this method for a function."""
        return self

    @overload
    def __call__(
        self: SweepMethod[A, Coroutine[Any, Any, T]],
        iterable: Iterable[A],
        /,
        *,
        max_concurrent: int = ...,
        return_exceptions: bool = ...,
    ) -> Iterator[T]: ...

    @overload
    def __call__(
        self: SweepMethod[A, T],
        iterable: Iterable[A],
        /,
        *,
        max_concurrent: int = ...,
        return_exceptions: bool = ...,
    ) -> Iterator[T]: ...

    def __call__(
        self,
        iterable: Iterable[Any],
        /,
        *more: Any,
        max_concurrent: int = DEFAULT_CONCURRENCY,
        return_exceptions: bool = False,
        **named: Any,
    ) -> Iterator[Any]:
        """Runs one task per element and yields their results in the order of the elements.

        The returned iterator is lazy: the first tasks start when its first result is asked for. Leaving the loop early
        cancels the tasks that still run.

        Args:
            iterable: One element per task. `map` calls the function with the element, `starmap` with the arguments
                that the element contains.
            *more: Refused, as are other names; the message says what to write for calls with several arguments.
            max_concurrent: Tasks that run at the same time.
            return_exceptions: Yield the exception of a failed task in place of its result. Otherwise the first failure
                is raised, and all other tasks are cancelled.

        Raises:
            ConfigError: A call does not fit the function; those of a list, or of anything else that has a length, are
                all checked before any starts.
        """
        what = f"{self._function}.{self.__name__}"
        calls = self._calls(what, iterable, more, named, max_concurrent)
        results = closed_at_exit(self._start(calls, max_concurrent, return_exceptions, False))
        return Results(results, f"{what}(…)")

    @overload
    def aio(
        self: SweepMethod[A, Coroutine[Any, Any, T]],
        iterable: Iterable[A],
        /,
        *,
        max_concurrent: int = ...,
        return_exceptions: bool = ...,
    ) -> AsyncIterator[T]: ...

    @overload
    def aio(
        self: SweepMethod[A, T],
        iterable: Iterable[A],
        /,
        *,
        max_concurrent: int = ...,
        return_exceptions: bool = ...,
    ) -> AsyncIterator[T]: ...

    def aio(
        self,
        iterable: Iterable[Any],
        /,
        *more: Any,
        max_concurrent: int = DEFAULT_CONCURRENCY,
        return_exceptions: bool = False,
        **named: Any,
    ) -> AsyncIterator[Any]:
        """The same from an event loop: `async for result in train.map.aio([1, 2])`.

        Cancelling the loop, as a timeout of `asyncio.timeout` does, or leaving it early cancels the tasks that still
        run. No thread waits for the tasks. Raises the same errors as a plain call.
        """
        from flowlite.api.sweeps.async_sweep import AsyncResults

        what = f"{self._function}.{self.__name__}.aio"
        calls = self._calls(what, iterable, more, named, max_concurrent)
        steps = closed_at_exit(self._start(calls, max_concurrent, return_exceptions, True))
        return AsyncResults(steps, f"{what}(…)")

    def _calls(
        self,
        what: str,
        iterable: Any,
        more: tuple[Any, ...],
        named: Mapping[str, Any],
        max_concurrent: int,
    ) -> Iterable[tuple[Any, ...]]:
        """The arguments of each call; a list if all of them are known now."""
        refuse_on_a_node()
        if type(max_concurrent) is not int or max_concurrent < 1:
            raise SpecError(
                f"max_concurrent: {max_concurrent!r} is not allowed; give a whole number of at least 1"
            )
        if more:
            raise SpecError(
                f"{what} takes one list, and got {1 + len(more)} arguments; for a function of several arguments: "
                f"{self._function}.starmap(zip(a, b))"
            )
        if named:
            raise SpecError(
                f"{what} takes only max_concurrent and return_exceptions by name, and got {', '.join(named)}; what a "
                f"function takes goes into each element: {self._function}.starmap([(x, y) for x in …])"
            )
        if not isinstance(iterable, Iterable) or isinstance(iterable, str | bytes):
            # A text would be one task for each of its characters.
            raise SpecError(f"{what}({iterable!r}): {_remedy(what, iterable)}")
        calls = (self._arguments_of(element) for element in iterable)
        return list(calls) if isinstance(iterable, Sized) else calls

    def __repr__(self) -> str:
        return f"<{self.__name__} of {self._function}>"


def _remedy(what: str, value: Any) -> str:
    if hasattr(value, "__aiter__"):
        return f"it takes no async iterator; collect it first: {what}([x async for x in …])"
    give = "give a list with one element per task, as in"
    if ".starmap" in what:
        return f"{give} {what}([({value!r},)])"
    return f"{give} {what}([{value!r}])" + (
        f" or {what}(range({value!r}))" if type(value) is int else ""
    )
