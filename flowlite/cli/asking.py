"""Asking the node's own program on every node of a task, for commands that look at running nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from flowlite.errors import FlowError

if TYPE_CHECKING:
    from flowlite.task import Task

_MOST_AT_ONCE = 32
_ASK_SECONDS = 60.0

_Value = TypeVar("_Value")


def on_all_nodes(task: Task[Any], ask: Callable[[int], _Value]) -> list[_Value]:
    """What `ask` gives for every node, by rank, all at a time."""
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, task.num_instances)) as pool:
        return list(pool.map(ask, range(task.num_instances)))


def ask_program(
    task: Task[Any], node: int, what: str, *, timeout: float = _ASK_SECONDS
) -> dict[str, Any]:
    """What the node's own program answers; {"error"} where it does not."""
    try:
        with task.reach(node) as there:
            done = there.connection.run([*there.program, what, there.home], timeout=timeout)
    except (FlowError, OSError) as error:
        return {"error": str(error) or type(error).__name__}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return {"error": said[-1] if said else f"no answer, exit status {done.code}"}
    return dict(answer)
