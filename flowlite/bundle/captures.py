"""The variables that a function captures, and which part of a value cannot be pickled."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from flowlite.bundle import scan
from flowlite.bundle.signature import function_name
from flowlite.node.serialization import pickling
from flowlite.node.serialization.safe import type_name

_DEEPEST = 8
# The most items of a container that are tried to find the one at fault.
_MOST_ITEMS = 2000

_TASK = "flowlite.api.task.Task"

# Advice, by words in the name of the type.
_HINTS = (
    ((_TASK,), "pass what it returned, as in task.result()"),
    (("lock", "RLock", "Condition", "Semaphore", "Event"), "make it inside the function"),
    (("generator", "coroutine"), "pass a list, or make it inside the function"),
    (("TextIOWrapper", "Buffered", "FileIO"), "pass the path, and open it inside the function"),
    (
        ("socket", "Connection", "Cursor", "Session", "Client", "Engine", "SSL"),
        "open it inside the function",
    ),
    (("Thread", "Process", "Pool", "Executor", "Popen"), "start it inside the function"),
    (("module",), "import it inside the function"),
)
_HINT = "make it inside the function, or pass what it is made from"
# Functions that cannot be pickled for what their decorator keeps in them, which says nothing to the user: an attribute
# that they have, who made them, and advice.
_MADE_BY = (
    ("_torchdynamo_orig_callable", "torch.compile", "call torch.compile inside the function"),
    ("registry", "functools.singledispatch", "make it inside the function"),
)


class Capture(NamedTuple):
    """A variable that is sent with a function by value, and that function's name."""

    variable: str
    function: str
    value: Any

    def __str__(self) -> str:
        return f"captured variable {self.variable!r} of {self.function}"


def captures(fn: types.FunctionType) -> Iterator[Capture]:
    """The closure variables, used globals and defaults of a function."""
    name = function_name(fn)
    for variable, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            yield Capture(variable, name, cell.cell_contents)
        except ValueError:
            # The closure's cell is empty.
            continue
    for variable in sorted(scan.global_names(fn.__code__)):
        if variable in fn.__globals__:
            yield Capture(variable, name, fn.__globals__[variable])
    positional = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    defaults = fn.__defaults__ or ()
    yield from (
        Capture(variable, name, value)
        for variable, value in zip(
            positional[len(positional) - len(defaults) :], defaults, strict=False
        )
    )
    yield from (Capture(k, name, v) for k, v in (fn.__kwdefaults__ or {}).items())


def explain(
    arguments: Iterable[tuple[str, Any]], fn: Callable[..., Any], error: BaseException
) -> str:
    """Why a call cannot be pickled.

    The text names the argument or the captured variable, the part of it at fault, and what to do.
    """
    for name, value in arguments:
        if (problem := _problem(value)) is not None:
            return _sentence(f"argument {name!r}", name, value, problem)
    found = _in_function(pickling.unwrap(fn), set())
    if found is not None:
        capture, problem = found
        return _sentence(str(capture), capture.variable, capture.value, problem)
    return f"{function_name(fn)} cannot be sent to a node: {_reason(error)}"


def _in_function(fn: Any, seen: set[int]) -> tuple[Capture, BaseException] | None:
    """The captured variable at fault, of this function or of one that it calls."""
    if not isinstance(fn, types.FunctionType) or id(fn) in seen:
        return None
    seen.add(id(fn))
    for capture in captures(fn):
        inner = pickling.unwrap(capture.value)
        if id(inner) in seen:
            continue
        problem = _problem(capture.value)
        if problem is None:
            continue
        if isinstance(inner, types.FunctionType) and _maker(inner) is None:
            if (deeper := _in_function(inner, seen)) is not None:
                return deeper
            continue
        return capture, problem
    return None


def _problem(value: Any) -> BaseException | None:
    try:
        pickling.dumps(value)
    except Exception as error:
        return error
    return None


def _sentence(what: str, name: str, value: Any, problem: BaseException) -> str:
    path, part, problem = _culprit(name, value, problem)
    if (maker := _maker(part)) is not None:
        return (
            f"{what} cannot be sent to a node: {path} is a function made by {maker[0]}, which cannot be pickled; "
            f"define it in a module of your project, or {maker[1]}"
        )
    kind = type_name(part)
    hint = next((hint for words, hint in _HINTS if any(word in kind for word in words)), _HINT)
    where = "it" if path == name else path
    return f"{what} cannot be sent to a node: {where} is a {kind} ({_reason(problem)}); {hint}"


def _maker(value: Any) -> tuple[str, str] | None:
    """Who made a function that cannot be pickled for what its maker keeps in it, and advice."""
    if isinstance(value, types.FunctionType):
        for attribute, maker, advice in _MADE_BY:
            if attribute in vars(value):
                return maker, advice
    return None


def _culprit(path: str, value: Any, problem: BaseException) -> tuple[str, Any, BaseException]:
    """Finds the innermost part that cannot be pickled."""
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        seen.add(id(value))
        for step, part in () if _maker(value) else _parts(value):
            if id(part) in seen:
                continue
            if (inner := _problem(part)) is not None:
                path, value, problem = path + step, part, inner
                break
        else:
            break
    return path, value, problem


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    items: Iterable[tuple[str, Any]]
    if isinstance(value, dict):
        items = ((f"[{key!r:.60}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        items = ((" (an item of the set)", item) for item in value)
    elif isinstance(value, types.FunctionType):
        items = ((f" (its variable {c.variable!r})", c.value) for c in captures(value))
    elif isinstance(value, types.MethodType):
        items = ((".__self__", value.__self__),)
    elif type_name(value) == _TASK:
        # What it has of ours says nothing to the user.
        items = ()
    else:
        # Copied, since pickling may add attributes (caches) to the object.
        items = ((f".{name}", item) for name, item in dict(getattr(value, "__dict__", {})).items())
    for count, item in enumerate(items):
        if count >= _MOST_ITEMS:
            return
        yield item


def _reason(error: BaseException) -> str:
    return f"{error}" if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
