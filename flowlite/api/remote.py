"""Runs calls on gangs for a program: starts them, waits for them, and runs many of them in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from flowlite.api.sweeps.sweep import KEPT_SECONDS, in_order, together
from flowlite.errors import FlowError

if TYPE_CHECKING:
    from flowlite.api.client import Flow
    from flowlite.api.task import Task
    from flowlite.spec.task import TaskConfig


def start(config: TaskConfig) -> Task[Any]:
    """Starts a task and returns at once."""
    from flowlite.api.submission import supervisor_ahead

    with supervisor_ahead(config):
        return _flow().submit(config)


def call(config: TaskConfig) -> Any:
    """Starts a task, waits for it and returns its result. Ctrl-C cancels the task and prints a message."""
    from flowlite.api.submission import supervisor_ahead

    submitted: list[Task[Any]] = []

    try:
        with supervisor_ahead(config):
            # While the supervisor imports, and before there is a task.
            from flowlite.display.waiting import announce_in_program

            def announce(task: Task[Any]) -> None:
                submitted.append(task)
                announce_in_program(task)

            task = _flow().submit(config, announce=announce)
        return task.result()
    except KeyboardInterrupt:
        _cancel_interrupted(submitted)
        raise


async def call_async(config: TaskConfig) -> Any:
    """As `call`, for an event loop. Cancelling it cancels the task, even one that is still being submitted."""
    import asyncio

    from flowlite.api.submission import supervisor_ahead
    from flowlite.display.waiting import announce_in_program

    submitted: list[Task[Any]] = []
    given_up = False

    def submit() -> Task[Any]:
        with supervisor_ahead(config):
            return _flow().submit(config, announce=announce)

    def announce(task: Task[Any]) -> None:
        submitted.append(task)
        if given_up:
            _cancel_unheard(task)
        else:
            announce_in_program(task)

    try:
        return await (await asyncio.to_thread(submit))
    except asyncio.CancelledError:
        given_up = True
        for task in submitted:
            _cancel_unheard(task)
        raise


def call_many(
    common: TaskConfig,
    configs: Iterable[TaskConfig],
    max_concurrent: int,
    return_exceptions: bool,
    pauses: bool,
) -> Generator[Any, None, None]:
    """Runs one task per configuration and yields the results in order. `common` has the options that they share.

    With `pauses`, it yields `sweep.PAUSE` in place of waiting.
    """
    from flowlite.display.waiting import sweep_in_program

    total = len(configs) if isinstance(configs, list) else None
    # Notes are the same for all tasks, and each is shown once.
    flow = _flow(notify=functools.lru_cache(None)(_say))
    with closing(sweep_in_program(common.name or "map", total)) as display:
        how: dict[str, Any] = {
            "ended_among": flow.ended_among,
            "pauses": pauses,
            "return_exceptions": return_exceptions,
            "on_interrupt": _cancel_interrupted,
            "display": display,
        }
        more = total is None or total > max_concurrent
        pool = os.urandom(6).hex() if more and flow.keeps_gangs(common) else ""
        if (
            not pool
            and isinstance(configs, list)
            and len(configs) > 1
            and flow.launches_together(common)
        ):
            # The provider enforces `max_concurrent`.
            for lot in together(range(len(configs)), max_concurrent):
                elements = (
                    functools.partial(flow.submit, configs[each["index"]], element=each)
                    for each in lot
                )
                yield from in_order(elements, max_concurrent=len(lot), **how)
            return
        submit = functools.partial(_submit_to, flow, pool) if pool else flow.submit
        if pool:
            how["when_idle"] = functools.partial(_end_pool, flow, pool)
        starts = (functools.partial(submit, config) for config in configs)
        yield from in_order(starts, max_concurrent=max_concurrent, **how)


def _submit_to(flow: Flow, pool: str, config: TaskConfig) -> Task[Any]:
    """Submits a task of a sweep, which keeps its machines for the next one."""
    return flow.submit(config.replace(keep_warm=KEPT_SECONDS), pool=pool)


def _end_pool(flow: Flow, pool: str) -> None:
    """Ends the machines that no task of the sweep needs any more. Those that cannot be asked end themselves."""
    try:
        problems = flow.end_pool(pool)
    except (FlowError, OSError) as error:
        problems = [str(error)]
    for problem in problems:
        _say(
            f"machines kept for this sweep end by themselves within {KEPT_SECONDS / 60:.0f} min, since they could not "
            f"be ended now: {problem}"
        )


def _flow(notify: Callable[[str], None] | None = None) -> Flow:
    from flowlite.api.client import Flow

    return Flow(notify=notify)


def _cancel_interrupted(tasks: Sequence[Task[Any]]) -> None:
    """Cancels tasks after Ctrl-C. Prints for each one what happened and the commands to look at it."""
    for task in tasks:
        try:
            ended = not task.cancel()
        except (FlowError, OSError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted again"
            text = (
                f"task {task.name} ({task.id}) could not be cancelled and goes on: {why}\n"
                f"  follow it: flow logs {task.id} -f    cancel it: flow cancel {task.id}"
            )
        else:
            text = (
                f"task {task.name} ({task.id}) had ended before; its result: flow result {task.id}"
                if ended
                else f"task {task.name} ({task.id}) is being cancelled\n"
                f"  its end: flow status {task.id}    its output: flow logs {task.id}"
            )
        _say(f"\nInterrupted: {text}")


def _cancel_unheard(task: Task[Any]) -> None:
    """Cancels a task whose await was given up, for example by Ctrl-C or a timeout. Says so in one line."""
    try:
        if not task.cancel():
            return
        text = f"is being cancelled, since its await was; its end: flow status {task.id}"
    except (FlowError, OSError) as error:
        text = f"could not be cancelled and continues: {error}"
    _say(f"task {task.name} ({task.id}) {text}")


def _say(text: str) -> None:
    from flowlite.display.screen import program_screen

    program_screen().tell(text)
