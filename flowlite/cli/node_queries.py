"""Queries the nodes of a task, for commands that inspect running nodes; several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from flowlite.connect.bounded import last_line, parse_object
from flowlite.errors import FlowError

if TYPE_CHECKING:
    from flowlite.api.task import Task

_MOST_AT_ONCE = 32
_ASK_SECONDS = 60.0
_MOST_SAID = 2000

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def in_parallel(ask: Callable[[_Item], _Value], items: Sequence[_Item]) -> list[_Value]:
    """The results of `ask` for some nodes, or providers, in their order, called in parallel."""
    if len(items) < 2:
        return [ask(each) for each in items]
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(items))) as pool:
        return list(pool.map(ask, items))


def ask_program(
    task: Task[Any],
    node: int,
    what: str,
    *,
    check: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """The answer of the node's own program; {"error"} if it does not answer or the answer is invalid.

    Args:
        check: Processes the answer as the caller will. Any exception that it raises makes the answer invalid.
    """
    try:
        with task.reach(node) as there:
            done = there.connection.run([*there.program, what, there.home], timeout=_ASK_SECONDS)
    except (FlowError, OSError) as error:
        return {"error": str(error) or type(error).__name__}
    try:
        answer = parse_object(done.stdout)
    except ValueError:
        said = last_line(done.stderr)[:_MOST_SAID].decode(errors="replace").strip()
        return {"error": said or f"no answer, exit status {done.code}"}
    try:
        if "error" in answer:
            return {"error": str(answer["error"])[:_MOST_SAID]}
        check(answer)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return {"error": f"its program answers nonsense ({type(error).__name__}: {error})"}
    return answer
