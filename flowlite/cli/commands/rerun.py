"""`flow rerun`: runs the same call or command again, as a new task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Detach, JsonOfResult, NoLogs, YesToCost
from flowlite.cli.task_argument import OptionalTask, task_or_newest
from flowlite.errors import ConfigError


def rerun(
    task: OptionalTask = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="OPTION=VALUE",
            help="An option of the task that is changed, as in a task file: num_instances=4. May be repeated.",
        ),
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="Send the project's files as they are now, not as the task had them."
        ),
    ] = False,
    detach: Detach = False,
    no_logs: NoLogs = False,
    yes: YesToCost = False,
    json: JsonOfResult = False,
) -> None:
    """Run a task again: the same call or command with the same options, as a new task."""
    from flowlite.api.client import Flow
    from flowlite.api.session import open_session
    from flowlite.api.submission import config_of_task
    from flowlite.cli.submit_and_follow import submit_and_follow

    session = open_session()
    original = task_or_newest(Flow(), task)
    config = config_of_task(original.record, session.paths(original.id), changed_options(set or ()))
    raise output.Quit(
        submit_and_follow(
            config,
            detach=detach,
            json=json,
            show_logs=not no_logs,
            yes=yes,
            inputs_of=original,
            files_now=now,
        )
    )


def changed_options(given: Sequence[str]) -> dict[str, Any]:
    """Parses options by name, with their values in YAML. Raises ConfigError."""
    import yaml

    from flowlite.spec.taskfile import parsed

    found = {}
    for word in given:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--set: {word!r} is not allowed; write OPTION=VALUE, as num_instances=4"
            )
        try:
            found[name.replace("-", "_")] = parsed(text)[1]
        except (yaml.YAMLError, ValueError):
            raise ConfigError(f"--set {name}: {text!r} cannot be read as a value of YAML") from None
    return found
