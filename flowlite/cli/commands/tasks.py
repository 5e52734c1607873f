"""`flow cancel`, `flow resume` and `flow result`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output, result_text
from flowlite.cli.common_options import TASKS, Json
from flowlite.cli.completion import complete_task
from flowlite.cli.confirmation import confirm_launch
from flowlite.cli.task_argument import OptionalTask, newest_to_cancel, task_or_newest
from flowlite.errors import ConfigError, FlowError, NotFound, TaskTimeout

if TYPE_CHECKING:
    from flowlite.api.client import Flow
    from flowlite.api.task import Task

_LOOK_SECONDS = 5.0


def cancel(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids, names or unique prefixes; without them, the newest unfinished task, after a question.",
            autocompletion=complete_task,
            metavar="TASK...",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Return only when the nodes are gone.")
    ] = False,
    json: Json = False,
) -> None:
    """Cancel tasks. Their nodes are given back; logs are kept."""
    from flowlite.api.client import Flow

    flow = Flow(notify=_unheard)
    # All names are looked up first, so that a wrong one cancels nothing.
    try:
        found = [flow.get_task(name) for name in tasks or ()]
    except NotFound as error:
        if len(tasks or ()) > 1:
            error.add_note("no task was cancelled")
        raise
    found = found or [newest_to_cancel(flow)]
    asked: list[tuple[Task[Any], bool]] = []
    errors: list[FlowError | OSError] = []
    # What is wrong with one task, as on a full disk, is no reason to let the others go on.
    for one in found:
        try:
            asked.append((one, one.cancel()))
        except (FlowError, OSError) as error:
            error.add_note(f"{one.name} ({one.id}) was not cancelled, and keeps running")
            errors.append(error)
    if wait:
        for one, _ in asked:
            _wait_for_end(one)
    for one, was in asked:
        if not was and one.name in (tasks or ()):
            _tell_namesakes(flow, one)
    if not json:
        for one, was in asked:
            _say_cancelled(one, was, wait)
    elif asked:
        data = [{**output.task_json(one), "cancel_requested": was} for one, was in asked]
        output.print_json("tasks", data)
    if errors:
        for each in errors[:-1]:
            output.report(each)
        raise output.beside_json(errors[-1]) if json and asked else errors[-1]


def _say_cancelled(task: Task[Any], was_asked: bool, waited: bool) -> None:
    name = f"{task.name} ({task.id})"
    if not was_asked:
        output.say(f"{name} had ended before: {task.status}")
    elif waited:
        output.say(f"{name}: {task.status}")
    else:
        output.say(f"{name} is being cancelled; `flow status {task.id}` shows its end")


def _tell_namesakes(flow: Flow, ended: Task[Any]) -> None:
    """Says which tasks of that name go on, since they may cost money."""
    for one in flow.list_tasks(unfinished=True):
        if one.name == ended.name and one.record.cancel_requested_at is None:
            output.warn(
                f"an earlier {one.name} ({one.id}) continues ({one.status}); `flow cancel {one.id}` ends it"
            )


def _wait_for_end(task: Task[Any]) -> None:
    """Waits for a task, and tells meanwhile why its end cannot be recorded, such as that the disk is full."""
    while True:
        try:
            task.wait(_LOOK_SECONDS, show_logs=False)
        except TaskTimeout:
            if news := task.news_of_recording():
                output.warn(news)
        else:
            return


def resume(
    tasks: Annotated[list[str], TASKS],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before machines are launched.")
    ] = False,
    json: Json = False,
) -> None:
    """Continue tasks that lost their supervisor before they had machines; the machines are launched now."""
    from flowlite.api.candidates.ranking import Candidates
    from flowlite.api.client import Flow
    from flowlite.api.session import open_session
    from flowlite.supervise.process.launch import check_resumable

    flow, session = Flow(notify=_unheard), open_session()
    named = {one.id: one for one in (flow.get_task(name) for name in tasks)}
    found, problems = [], []
    # What one task does not need is no reason to leave the others without a supervisor.
    for one in named.values():
        try:
            check_resumable(session.store, session.home, one.id)
        except ConfigError as error:
            problems.append(error.text)
        else:
            found.append(one)
    for one in found:
        confirm_launch(Candidates.of_task(one.record), yes or json)
    for one in found:
        one.resume()
    if not json:
        for one in found:
            output.say(f"{one.name} ({one.id}) goes on; `flow status {one.id}` shows how")
    elif found:
        output.print_json("tasks", [output.task_json(one) for one in found])
    if problems:
        wrong = ConfigError("\n".join(problems))
        raise output.beside_json(wrong) if json and found else wrong


def result(
    task: OptionalTask = None,
    rank: Annotated[int, typer.Option("--rank", help="Global rank whose result is printed.")] = 0,
    pickle: Annotated[
        bool,
        typer.Option(
            "--pickle/--no-pickle",
            help="Never unpickle: refuse results that are not plain data, and show exceptions as text.",
        ),
    ] = True,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds to wait for the end of the task.")
    ] = None,
    json: Json = False,
) -> None:
    """Wait for the end of a task and print what it returned."""
    from flowlite.api.client import Flow

    found = task_or_newest(Flow(), task)
    value = found.result_of(rank, timeout, allow_pickle=pickle, show_logs=False)
    if json:
        data = output.task_json(found)
        output.print_json("result", {**data, "rank": rank, **result_json(value)})
        return
    show_value(value)


def result_json(value: Any) -> dict[str, Any]:
    """A result in JSON: its text, and the value itself if it consists of JSON types and is not too large."""
    return {
        "result": result_text.as_json(value),
        "result_text": None if value is None else result_text.one_line(value),
    }


def show_value(value: Any) -> None:
    """Prints a result: a text as it is, nothing for None, other values by their repr."""
    if value is None:
        return
    if isinstance(value, str):
        output.say(value)
    else:
        output.say_value(result_text.pretty(value))


def _unheard(note: str) -> None:
    """Ignores a note of `Flow.get_task`, for commands that do what it advises."""
