"""Submits tasks from the command line, and follows them until they end."""

from __future__ import annotations

import copy
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from flowlite import terminal
from flowlite.cli import interrupts, output
from flowlite.cli.candidate_table import candidates_json, show_candidates
from flowlite.cli.confirmation import confirm_launch
from flowlite.display.screen import terminal_screen
from flowlite.display.task_display import TaskDisplay, beginning, ending
from flowlite.display.waiting import wait_for_end
from flowlite.errors import FlowError
from flowlite.supervise.money import price_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowlite.api.candidates.ranking import Candidates
    from flowlite.api.task import Task
    from flowlite.bundle.files_to_send import FilesToSend
    from flowlite.provider import Plan
    from flowlite.spec import TaskConfig

# The most nodes for which files that will be lost are listed at the end.
_MOST_UNKEPT = 3


def preview(config: TaskConfig, json: bool) -> None:
    """Shows what would be launched. Writes nothing, and makes no request to the provider that could cost money."""
    from flowlite.api.client import Flow
    from flowlite.api.submission import check_after, nothing_to_run

    check_after(config.after)
    if config.command is None and config.call is None:
        raise nothing_to_run()
    with warnings_as_lines():
        flow = Flow()
        config, places = flow.candidates(config)
        plan = places.best
        travelling = flow.travelling(config, places.sent_to)
    if json:
        data = {
            "config": _without_passwords(config.to_dict(), "dependencies"),
            "plan": _without_passwords(plan.to_json(), "options", "python_spec", "requirements"),
            **price_text.worst_case_json(plan),
            "files": _files_json(travelling),
            **candidates_json(places),
        }
        output.print_json("plan", data)
        return
    files = _files_facts(places.sent_to, travelling)
    output.facts({"runs": _what(config), **plan_facts(plan), **files})
    if places.several:
        show_candidates(places)
    for note in plan.notes:
        output.say(f"note: {note}")
    output.tell("dry run: nothing was submitted")


def _without_passwords(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Returns data whose entry at `keys`, a requirement or several, has no names and passwords in its addresses."""
    from flowlite.node.python_env.uv import without_credentials

    *path, last = keys
    found = copy.deepcopy(data)
    inner: Any = found
    for key in path:
        inner = inner.get(key) or {}
    given = inner.get(last)
    if isinstance(given, str):
        inner[last] = without_credentials(given)
    elif given:
        inner[last] = [without_credentials(each) for each in given]
    return found


_MOST_LEFT_OUT = 5


def _files_facts(plan: Plan, travelling: FilesToSend | None) -> dict[str, str | None]:
    """The rows of the plan about files of this machine that the nodes will have."""
    from flowlite.node.system.byte_sizes import human_size

    if travelling is None:
        here = plan.options.get("workdir")
        return {"files": f"none travel; workers start in {here}" if here else "none travel"}
    sizes, listing = travelling.sizes, travelling.listing
    start = "" if travelling.start == "." else f"; workers start in {travelling.start}/"
    root = f" of {listing.root}" if listing.files else ""
    facts: dict[str, str | None] = {
        "files": f"{len(sizes):,}{root}, {human_size(sum(sizes.values()))}{start}"
    }
    left = sorted(listing.left_out)
    if left:
        more = f", and {len(left) - _MOST_LEFT_OUT} more" if len(left) > _MOST_LEFT_OUT else ""
        facts["left out"] = ", ".join(left[:_MOST_LEFT_OUT]) + more
    return facts


def _files_json(travelling: FilesToSend | None) -> dict[str, Any] | None:
    if travelling is None:
        return None
    sizes = travelling.sizes
    return {
        "root": travelling.listing.root,
        "start": travelling.start,
        "count": len(sizes),
        "bytes": sum(sizes.values()),
        "left_out": travelling.listing.left_out,
    }


def plan_facts(plan: Plan) -> dict[str, str | None]:
    """What a plan would launch and what that costs, as names and values."""
    per_node = plan.processes_per_node
    return {
        "provider": " ".join(filter(None, (plan.provider, plan.region))),
        "gang": price_text.gang(plan),
        "processes": f"{per_node} per node, {_times(per_node, plan)} in all",
        "price": price_text.price(plan),
        "longest run": output.duration(plan.max_run_seconds)
        if plan.max_run_seconds
        else "no limit",
        "cost at most": price_text.worst_case(plan),
        "not in it": "; ".join(plan.not_included) or None,
    }


def _times(per_node: int, plan: Plan) -> str:
    fewest, most = plan.fewest_instances * per_node, plan.num_instances * per_node
    return str(most) if fewest == most else f"{fewest} to {most}"


def _show_plan(places: Candidates) -> None:
    """Shows the plan on standard error, before money is spent."""
    shown = plan_facts(places.best)
    if len(places.ranked) > 1:
        shown["or else"] = f"{len(places.ranked) - 1} more; --dry-run lists them"
        shown["the dearest"] = price_text.sentence(places.dearest)
    output.facts(shown, wrapped=False, to=output.tell)


def submit_and_follow(
    config: TaskConfig,
    *,
    detach: bool,
    json: bool,
    show_logs: bool,
    yes: bool = False,
    inputs_of: Task[Any] | None = None,
    files_now: bool = False,
) -> int:
    """Submits a task and, unless detached, follows it until it ends. Returns the exit code of the command.

    Args:
        inputs_of: The task whose call is repeated, if the configuration has none.
        files_now: Send the project's files as they are now, not as that task had them.
    """
    from flowlite.api.client import Flow

    submitted: list[Task[Any]] = []
    try:
        with interrupts.last_words(lambda: goes_on(submitted)):
            with warnings_as_lines():
                flow = Flow(notify=lambda text: output.tell(f"note: {text}"))
                task = flow.submit(
                    config,
                    announce=submitted.append,
                    show_plan=_show_plan,
                    confirm=lambda places: confirm_launch(places, yes or json),
                    inputs_of=inputs_of,
                    files_now=files_now,
                )
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


def goes_on(tasks: Iterable[Task[Any]]) -> str:
    """What is said of tasks whose command was terminated."""
    return "".join(
        f"\nterminated; task {task.name} ({task.id}) keeps running without this command\n{_reach(task)}\n"
        for task in tasks
    )


def _leave(task: Task[Any], json: bool) -> int:
    if json:
        output.print_json("task", output.task_json(task))
        return 0
    output.say(task.id)
    output.tell(f"task {task.name} ({task.id}) goes on without this terminal")
    output.tell(_reach(task))
    return 0


def _stay(task: Task[Any], *, json: bool, show_logs: bool) -> int:
    try:
        output.tell(beginning(task))
        follow(task, show_logs)
        code = _end(task, json=json, logs_shown=show_logs)
        sys.stdout.flush()
        return code
    except OSError as error:
        # The reader of the output has closed the pipe, or the file that it goes to cannot grow. The task is still
        # followed, for its exit code.
        lost = output.result_is_lost(error)
        if not output.drop_unusable_streams(error):
            raise
        output.tell(
            f"the output cannot be written any more ({error.strerror}); task {task.name} ({task.id}) continues, and "
            "this command waits for its end"
        )
        failure = task.exception(show_logs=False)
        # As for `flow logs`; a script must not take an empty file for the result.
        return int(lost) if failure is None else output.exit_code(failure)


def _end(task: Task[Any], *, json: bool, logs_shown: bool) -> int:
    from flowlite.cli.commands.tasks import result_json, show_value

    error = task.exception(show_logs=False)
    if error is None:
        value: Any = None
        try:
            value = task.result(show_logs=False)
        except FlowError as unreadable:
            error = unreadable
    record = task.record
    if json:
        data = output.task_json(task)
        data.update(result_json(None) if error is not None else result_json(value))
        data["error"] = output.error_json(error) if error is not None else None
        output.print_json("result", data)
    if record.config.get("checkpoint"):
        _tell_checkpoints(task)
    _tell_outputs(task)
    if error is not None:
        return output.report(error, brief=logs_shown)
    output.tell(ending(task))
    if not json:
        show_value(value)
    return 0


def _tell_checkpoints(task: Task[Any]) -> None:
    """Shows which checkpoints were kept and where, or why they were not."""
    attempt = task.record.attempt
    for event in task.events():
        if event.data.get("attempt") == attempt and "checkpoint: " in event.text:
            text = terminal.in_one_line(event.text)
            if event.kind == "checkpoint":
                output.tell(text)
            elif event.kind == "warning":
                output.warn(text)


def _tell_outputs(task: Task[Any]) -> None:
    """Shows where the outputs are, why some are missing, and which files of nodes are not kept."""
    attempt, unkept = task.record.attempt, 0
    for event in task.events():
        if event.kind == "unkept" and event.data.get("attempt") == attempt:
            unkept += 1
            if unkept <= _MOST_UNKEPT:
                output.tell(f"note: {terminal.in_one_line(event.text)}")
        if event.kind == "outputs":
            text = f"outputs: {terminal.in_one_line(event.text)}"
            if event.data.get("missing") or event.data.get("taken"):
                output.warn(text)
            else:
                output.tell(text)


def follow(task: Task[Any], show_logs: bool) -> None:
    """Waits until the task ends, showing changes of state and, if asked for, the output."""
    screen = terminal_screen()
    display = TaskDisplay(task, screen, show_output=show_logs)
    try:
        wait_for_end(task, display)
    finally:
        with suppress(OSError):
            screen.flush()


def interrupted(task: Task[Any], detach: bool) -> int:
    """Cancels the task after Ctrl-C, unless it is detached. Shows which of the two, and returns the exit code."""
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
        task.wait(show_logs=False)
        output.tell(f"{name}: {task.status}; its output: flow logs {task.id}")
    except KeyboardInterrupt:
        record = task.record
        leaves = not record.final and record.cancel_requested_at is not None
        state = f"{record.state}, and is being cancelled" if leaves else record.state
        output.tell(f"\n{name} is {state}; its end: flow status {task.id}")
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
    """Shows Python's warnings on standard error, in one line each."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: output.warn(str(message))
        yield
