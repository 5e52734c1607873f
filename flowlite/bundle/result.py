"""Reads a worker's result file on the client: a value, or the exception that the worker ended with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowlite.errors import RemoteError, RemoteTraceback, ResultUnavailable, TaskFailed
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.serialization.result_file import OutcomeError, OutcomeFile, read_outcome


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    Attributes:
        value: What the function returned; None if it raised.
        exception: The exception that the worker ended with, of its own type if that can be rebuilt here, else
            `RemoteError`; `TaskFailed` for kinds "load" and "result".
        kind: "value", or what failed: "exception" (the function), "load" (loading the call), "result"
            (sending its value back).
    """

    value: Any = None
    exception: BaseException | None = None
    kind: str = "value"

    def unwrap(self) -> Any:
        """Returns the value, or raises the exception."""
        if self.exception is not None:
            raise self.exception
        return self.value


def load_result(
    path: Path,
    *,
    allow_pickle: bool,
    node: int,
    rank: int,
    task_name: str,
    task_id: str,
    attempt: int,
) -> Outcome:
    """Reads the result file of one rank. The integrity hash in the file is checked before anything is loaded.

    Args:
        path: The file.
        allow_pickle: If False, a pickled value is refused and exceptions become `RemoteError`, so that nothing in the
            file can run code. It has no default, so that each caller decides.
        node: Node rank; for messages, as are the following.
        rank: Global rank.
        task_name: Name of the task.
        task_id: Its id.
        attempt: Its attempt, from 1.

    Raises:
        ResultUnavailable: The file is missing, cut off or damaged, or it holds a pickle that is refused or fails to
            load.
    """
    of_task = f"of task {task_name} ({task_id}), attempt {attempt}"
    place = f"node {node}, rank {rank} {of_task}"
    try:
        found = read_outcome(path, allow_pickle=allow_pickle)
    except OutcomeError as error:
        raise ResultUnavailable(f"no result of {place}: {error}") from error
    if found.kind == "value":
        return Outcome(found.value)
    if found.raised_by is not None:
        place = f"node {found.raised_by[0]}, rank {found.raised_by[1]} {of_task}"
    return Outcome(exception=_exception(found, place, task_id), kind=found.kind)


def _exception(found: OutcomeFile, place: str, task_id: str) -> BaseException:
    """The worker's exception, with its traceback as the cause and a note on where it was raised."""
    error: BaseException
    if found.kind != "exception":
        error = TaskFailed(found.message, task_id=task_id)
    elif isinstance(found.exception, Exception):
        error = found.exception
    else:
        # A BaseException such as KeyboardInterrupt or CancelledError would act on this program.
        text = f"{found.type}: {found.message}" if found.message else found.type
        error = RemoteError(text, type_name=found.type, remote_traceback=found.traceback)
        error.task_id = task_id
    error.__cause__ = RemoteTraceback(found.traceback)
    error.add_note(f"raised on {place}")
    return error
