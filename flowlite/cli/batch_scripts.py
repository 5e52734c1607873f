"""`flow run job.sbatch`: runs an existing batch script on any provider, and its arrays as several tasks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowlite.cli import interrupts, output
from flowlite.cli.confirmation import confirm_launch
from flowlite.errors import ConfigError, FlowError
from flowlite.node.quick_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowlite.api.client import Flow
    from flowlite.api.task import Task
    from flowlite.spec.batch import Reading

    Start = Callable[[], Task[Any]]

AT_ONCE = 8
"""Tasks of an array that run at a time if the script sets no limit."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `flow run` that are not options of the task."""

    dry_run: bool = False
    detach: bool = False
    json: bool = False
    show_logs: bool = True
    yes: bool = False


def is_script(target: str) -> bool:
    """Whether a target of `flow run` is a batch script."""
    if "::" in target or target == "--":
        return False
    from flowlite.spec.batch import looks_like_batch

    return looks_like_batch(target)


def run_script(
    target: str, arguments: Sequence[str], options: Mapping[str, Any], how: RunOptions
) -> int:
    """Runs a batch script. Returns the exit code of the command. Raises ConfigError."""
    from flowlite.cli.submit_and_follow import preview, submit_and_follow
    from flowlite.settings.settings import load_settings
    from flowlite.spec.batch import read_batch

    provider = load_settings({"provider": options.get("provider")}).provider
    if "distributed_mode" in options:
        raise ConfigError("--manual does not go with a batch script, whose srun starts the tasks")
    reading = read_batch(target, options, provider=provider, arguments=arguments)
    for note in reading.notes:
        output.tell(f"note: {note}")
    if reading.is_array and not (how.dry_run and how.json):
        return _run_array(reading, how)
    config = reading.configs[0]
    if how.dry_run:
        preview(config, how.json)
        return 0
    return submit_and_follow(
        config, detach=how.detach, json=how.json, show_logs=how.show_logs, yes=how.yes
    )


def _run_array(reading: Reading, how: RunOptions) -> int:
    from flowlite.api.client import Flow
    from flowlite.cli.submit_and_follow import preview

    count = len(reading.configs)
    at_once = reading.at_once or min(count, AT_ONCE)
    if how.dry_run:
        preview(reading.configs[0], how.json)
        output.tell(f"an array of {count} such tasks, {min(count, at_once)} at a time")
        return 0
    flow = Flow(notify=functools.lru_cache(None)(lambda text: output.tell(f"note: {text}")))
    starts, together = _starts(flow, reading)
    limited = not together and reading.at_once is not None and reading.at_once < count
    if how.detach and limited:
        raise ConfigError(
            f"--detach: nobody is left to keep the limit of {reading.at_once} tasks at a time (%{reading.at_once}); "
            "leave --detach out, or the limit"
        )
    places = flow.candidates(reading.configs[0])[1]
    flow.tell_notes(places.best)
    confirm_launch(places, how.yes or how.json, tasks=count)
    submitted: list[Task[Any]] = []
    with interrupts.last_words(lambda: _go_on(submitted, count)):
        if how.detach:
            _submit_all(starts, submitted, how.json)
            return 0
        return _attend_all(starts, submitted, len(starts) if together else at_once, how.json)


def _go_on(tasks: Sequence[Task[Any]], count: int) -> str:
    """What is said of the tasks of an array whose command was terminated."""
    return (
        f"\nterminated; {len(tasks)} of {count} tasks are submitted, and those that have not ended go on: "
        "`flow status` lists them, `flow cancel TASK` ends one\n"
    )


def _starts(flow: Flow, reading: Reading) -> tuple[list[Start], bool]:
    """A function for each task of an array that submits it, and whether they are launched together as a Slurm array."""
    from flowlite.api.sweeps.sweep import MOST_TOGETHER, together

    configs = reading.configs
    if not 1 < len(configs) <= MOST_TOGETHER or not flow.launches_together(configs[0]):
        return [functools.partial(flow.submit, config) for config in configs], False
    indices = [int((c.batch or {})["variables"]["SLURM_ARRAY_TASK_ID"]) for c in configs]
    (lot,) = together(indices, reading.at_once or 0)
    pairs = zip(configs, lot, strict=True)
    return [functools.partial(flow.submit, c, element=element) for c, element in pairs], True


def _submit_all(starts: Sequence[Start], submitted: list[Task[Any]], json: bool) -> None:
    """Submits the tasks of an array, and shows each as it is submitted; as JSON, all of them at the end.

    If one cannot be submitted, those before it are shown all the same: they go on, and may cost money.
    """
    try:
        for start in starts:
            submitted.append(start())
            if not json:
                _show_id(submitted[-1])
    except (KeyboardInterrupt, Exception) as error:
        if not submitted:
            raise
        output.tell(
            f"{len(submitted)} of {len(starts)} tasks are submitted and go on; `flow cancel TASK` ends one"
        )
        if not json:
            raise
        _print_tasks(submitted)
        if isinstance(error, Exception) and not interrupts.pressed():
            raise output.beside_json(error) from error
        raise
    if json:
        _print_tasks(submitted)


def _show_id(task: Task[Any]) -> None:
    """Prints the id at once: the task keeps running if this command, or the program that reads its output, ends."""
    try:
        output.say(task.id)
        sys.stdout.flush()
    except OSError as error:
        if not output.drop_unusable_streams(error):
            raise


def _print_tasks(tasks: Sequence[Task[Any]]) -> None:
    output.print_json("tasks", [output.task_json(task) for task in tasks])


def _attend_all(starts: Sequence[Start], started: list[Task[Any]], at_once: int, json: bool) -> int:
    """Follows the tasks of an array until they end. As under Slurm, a failure does not stop the others."""
    from flowlite.api.sweeps.sweep import in_order
    from flowlite.api.task import Ends

    # By the number of the start; None if that failed.
    tasks: list[Task[Any] | None] = []

    def announced(start: Start) -> Task[Any]:
        tasks.append(None)
        try:
            task = start()
        except Exception as error:
            if interrupts.pressed():
                raise KeyboardInterrupt from error
            raise
        tasks[-1] = task
        started.append(task)
        output.tell(f"task {task.name} ({task.id}) is submitted")
        return task

    failed = 0
    ends = in_order(
        (functools.partial(announced, start) for start in starts),
        max_concurrent=at_once,
        ended_among=Ends().among,
        return_exceptions=True,
        on_interrupt=_cancel_all,
    )
    for number, end in enumerate(ends):
        task = tasks[number]
        error = end if isinstance(end, Exception) else None
        failed += error is not None
        if task is None:
            output.tell(f"task {number + 1} of {len(starts)} could not be submitted: {error}")
        else:
            output.tell(str(error) if error else f"task {task.name} ({task.id}): {task.status}")
    if json:
        _print_tasks(started)
    output.tell(f"{len(tasks) - failed} of {len(starts)} tasks completed; output: flow logs TASK")
    return 1 if failed else 0


def _cancel_all(tasks: Sequence[Task[Any]]) -> None:
    for task in tasks:
        try:
            task.cancel()
        except (FlowError, OSError) as error:
            output.tell(f"task {task.name} ({task.id}) could not be cancelled and goes on: {error}")
        else:
            output.tell(f"task {task.name} ({task.id}) is being cancelled")
