"""Submitting from the command line, and staying with the task until its end."""

from __future__ import annotations

import os
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from flowlite import terminal
from flowlite.api.task import LONGEST_PAUSE
from flowlite.cli import interrupts, output
from flowlite.cli.commands.logs import LiveLine, show
from flowlite.errors import FlowError
from flowlite.output.printing import DIM, Painted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowlite.api.task import Task
    from flowlite.output.reader import LogLine
    from flowlite.provider import Plan
    from flowlite.spec import TaskConfig


def preview(config: TaskConfig, json: bool) -> None:
    """Shows what would be launched. Nothing is written, nothing is asked of the provider that could cost money."""
    from flowlite.api.client import Flow

    with warnings_as_lines():
        config, plan = Flow().plan(config)
    if json:
        data = {
            "config": config.to_dict(),
            "plan": plan.to_json(),
            "worst_case_cost": plan.worst_case_cost,
        }
        output.print_json("plan", data)
        return
    output.facts({"runs": _what(config), **plan_facts(plan)})
    for note in plan.notes:
        output.say(f"note: {note}")
    output.tell("dry run: nothing was submitted")


def plan_facts(plan: Plan) -> dict[str, str | None]:
    """What a plan would launch and what that costs, name by name."""
    from flowlite.supervise.money import price_text

    per_node = plan.processes_per_node
    return {
        "provider": " ".join(filter(None, (plan.provider, plan.region))),
        "gang": price_text.gang(plan),
        "processes": f"{per_node} per node, {per_node * plan.num_instances} in all",
        "price": price_text.price(plan),
        "longest run": output.duration(plan.max_run_seconds)
        if plan.max_run_seconds
        else "no limit",
        "cost at most": price_text.worst_case(plan),
    }


def _show_plan(plan: Plan) -> None:
    """On standard error, before money is spent."""
    shown = plan_facts(plan)
    width = max(map(len, shown))
    for name, value in shown.items():
        output.tell(Painted(name.ljust(width), DIM), f"  {value}")


def attend(config: TaskConfig, *, detach: bool, json: bool, show_logs: bool) -> int:
    """Submits a task and, unless detached, stays with it to its end. Gives the exit code of the command."""
    from flowlite.api.client import Flow

    submitted: list[Task[Any]] = []
    try:
        with warnings_as_lines():
            flow = Flow(notify=lambda text: output.tell(f"note: {text}"))
            task = flow.submit(config, announce=submitted.append, show_plan=_show_plan)
        if detach:
            return _leave(task, json)
        return _stay(task, json=json, show_logs=show_logs and not json)
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, Exception) and not interrupts.pressed():
            raise
        if not submitted:
            output.tell("\ninterrupted; nothing was submitted")
            return 130
        return interrupted(submitted[0], detach)


def _leave(task: Task[Any], json: bool) -> int:
    if json:
        output.print_json("task", output.task_json(task.record, task.estimated_cost))
        return 0
    output.say(task.id)
    output.tell(f"task {task.name} ({task.id}) goes on without this terminal")
    output.tell(_reach(task))
    return 0


def _stay(task: Task[Any], *, json: bool, show_logs: bool) -> int:
    output.tell(f"task {task.name} ({task.id}): {task.function}")
    try:
        follow(task, show_logs)
        return _end(task, json=json, logs_shown=show_logs)
    except BrokenPipeError:
        # Whoever read our output has gone; the task and its exit code still matter.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        output.tell(f"nobody reads the output any more; task {task.name} ({task.id}) goes on")
        error = task.exception()
        return 0 if error is None else output.exit_code(error)


def _end(task: Task[Any], *, json: bool, logs_shown: bool) -> int:
    from flowlite.cli.commands.tasks import result_json, show_value

    error = task.exception()
    if error is None:
        value: Any = None
        try:
            value = task.result()
        except FlowError as unreadable:
            error = unreadable
    record = task.record
    if json:
        data = output.task_json(record, task.estimated_cost)
        data.update(result_json(None) if error is not None else result_json(value))
        data["error"] = output.error_json(error) if error is not None else None
        output.print_json("result", data)
    if record.config.get("checkpoint"):
        _tell_checkpoints(task)
    if record.config.get("outputs"):
        _tell_outputs(task)
    if error is not None:
        return output.report(error, brief=logs_shown)
    took = output.duration((record.finished_at or record.created_at) - record.created_at)
    output.tell(
        f"task {task.name} ({task.id}) completed in {took}, cost {output.money(task.estimated_cost)}"
    )
    if not json:
        show_value(value)
    return 0


def _tell_checkpoints(task: Task[Any]) -> None:
    """What became of the checkpoints: what is kept where, or why not."""
    attempt = task.record.attempt
    for event in task.events():
        if event.data.get("attempt") == attempt and "checkpoint: " in event.text:
            text = terminal.in_one_line(event.text)
            if event.kind == "checkpoint":
                output.tell(text)
            elif event.kind == "warning":
                output.warn(text)


def _tell_outputs(task: Task[Any]) -> None:
    """Where the outputs are, or why not all of them are here."""
    for event in task.events():
        if event.kind == "outputs":
            text = f"outputs: {terminal.in_one_line(event.text)}"
            if event.data.get("missing") or event.data.get("taken"):
                output.warn(text)
            else:
                output.tell(text)


class _Progress:
    """While nothing new is printed: the state of the task when it changes, and what a worker is writing just now."""

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        self._state = ""
        self.live = LiveLine() if sys.stdout.isatty() else None

    def pause(self, line: LogLine | None) -> None:
        record = self._task.record
        state = f"{record.state}: {record.reason}" if record.reason else record.state
        if state != self._state and not record.final:
            self._state = state
            if self.live:
                self.live.clear()
            sys.stdout.flush()
            output.tell(Painted(f"· {terminal.in_one_line(state)}", DIM))
        if self.live:
            self.live.show(line)
        sys.stdout.flush()


def follow(task: Task[Any], show_logs: bool) -> None:
    """Stays until the end, showing changes of state and, if asked for, the output."""
    progress = _Progress(task)
    if not show_logs:
        while not task.done:
            progress.pause(None)
            time.sleep(LONGEST_PAUSE)
        return
    try:
        for block in task.logs(follow=True, on_pause=progress.pause).blocks():
            show(block, progress.live)
    finally:
        with suppress(BrokenPipeError):
            if progress.live:
                progress.live.clear()
            sys.stdout.flush()


def interrupted(task: Task[Any], detach: bool) -> int:
    """Ends the task after Ctrl-C, unless it was to go on alone; says which, and gives the exit code."""
    name = f"task {task.name} ({task.id})"
    if detach:
        output.tell(f"\ninterrupted; {name} goes on without this terminal")
        output.tell(_reach(task))
        return 130
    try:
        if not task.cancel():
            output.tell(f"\ninterrupted; {name} had ended before: {task.status}")
            return 130
        output.tell(
            f"\ninterrupted; {name} is being cancelled. Press Ctrl-C again to leave now; it is cancelled either way"
        )
        task.wait()
        output.tell(f"{name}: {task.status}; its output: flow logs {task.id}")
    except KeyboardInterrupt:
        output.tell(f"\n{name} is {task.status}; its end: flow status {task.id}")
    except FlowError as error:
        output.tell(f"{name} could not be cancelled and goes on: {error}\n{_reach(task)}")
    return 130


def _reach(task: Task[Any]) -> str:
    return (
        f"  follow it: flow logs {task.id} -f    its result: flow result {task.id}    "
        f"cancel it: flow cancel {task.id}"
    )


def _what(config: TaskConfig) -> str:
    from flowlite.api.submission import command_line
    from flowlite.bundle.call_text import call_text

    if config.command is not None:
        return command_line(config.command)
    call = config.call
    if call is None:
        return "nothing"
    return call_text(call.function.__name__, call.args, call.kwargs)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Python's warnings in one line each, on standard error."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: output.warn(str(message))
        yield
